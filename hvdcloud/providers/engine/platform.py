"""What containers on engines of the user's mean for a configuration: they cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.providers.pricing import OffersResult


class EnginePlatform:
    """The part of a `Platform` that does not depend on where the engines are."""

    place: str
    costs_money = False
    processor: str | None = None
    unpacks_zstd = False

    def __init__(self, config: Config) -> None:
        self._config = config

    def offers(self, *, hours: float, gpu: str | None) -> OffersResult:
        """None, with a notice that says why."""
        from hvdcloud.providers.pricing import OffersResult

        notice = (
            f"provider {self._config.provider}: the nodes are containers {self.place} and cost nothing; "
            "--provider gce shows prices"
        )
        return OffersResult(nodes=self._config.nodes, hours=hours, prices_as_of=None, offers=(), notices=(notice,))
