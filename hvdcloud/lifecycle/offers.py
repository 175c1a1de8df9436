"""`hvdcloud offers`: the cluster that hvdcloud.yaml asks for, and others like it, with their prices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud import providers

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.providers.pricing import OffersResult


def offers(context: Context, *, hours: float, gpu: str | None, refresh: bool = False) -> OffersResult:
    """What the provider offers. What its API cannot be asked about stays unknown; a notice says why.

    Args:
        hours: how long the cluster would exist.
        gpu: only nodes with this GPU.
        refresh: first get every region's prices from Google's catalog.

    Raises:
        UsageError: the machine type or a GPU is not in the catalogue.
        HvdcloudError: the prices could not be refreshed.
    """
    if refresh:
        with context.console.waiting("offers", "reading Google's price catalog"):
            providers.refresh_prices(context.config, on_progress=context.console.say)
    return context.platform.offers(hours=hours, gpu=gpu)
