"""`hvdcloud prices`: which price table of Compute Engine's is used, and a new one from its catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.providers.gce.money import refresh as tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from hvdcloud.config.model import Config
    from hvdcloud.providers.pricing import PricesResult, RefreshResult


def show() -> PricesResult:
    """The table that is used."""
    return tables.show()


def refresh(config: Config, *, api_key: str | None, on_progress: Callable[[str], None]) -> RefreshResult:
    """Read the whole catalog, then replace the refreshed table in one move. A failure before that changes nothing.

    Args:
        api_key: instead of this machine's credentials. Where those are missing, GOOGLE_API_KEY is taken.

    Raises:
        CredentialsError: there are none, or they are refused.
        NodeError: the API cannot be reached, or its answer cannot be right.
        UsageError, CapacityError: the table cannot be written.
    """
    gce = config.gce
    return tables.refresh(project=gce.project, endpoint=gce.endpoint, api_key=api_key, on_progress=on_progress)
