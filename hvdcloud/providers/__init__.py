"""The registry of providers: `local` (containers on this machine's Docker engine), `ssh` (containers on machines that
the user reaches by SSH) and `gce` (Compute Engine VMs)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.providers.base import Platform
    from hvdcloud.providers.pricing import OffersResult


def platform(config: Config) -> Platform:
    """What the provider that the configuration names says of it; nothing is connected."""
    # Imported on use: `local` needs nothing of Compute Engine's, and the other way round.
    if config.provider == "local":
        from hvdcloud.providers.local.platform import LocalPlatform

        return LocalPlatform(config)
    if config.provider == "ssh":
        from hvdcloud.providers.ssh.platform import SshPlatform

        return SshPlatform(config)
    from hvdcloud.providers.gce.platform import GcePlatform

    return GcePlatform(config)


def offers(config: Config, *, hours: float, gpu: str | None) -> OffersResult:
    """Clusters on Compute Engine like the configured one, with their prices. What cannot be asked stays unknown.

    Args:
        hours: that `Offer.dollars` is for.
        gpu: only nodes with this GPU.

    Raises:
        UsageError: the machine type or a GPU is not in the catalogue.
    """
    from hvdcloud.providers.gce.platform import GcePlatform

    return GcePlatform(config).offers(hours=hours, gpu=gpu)


def refresh_prices(config: Config, *, on_progress: Callable[[str], None]) -> None:
    """Replace the refreshed price table by one from Google's catalog; raises as gce/money/refresh.py says."""
    from hvdcloud.providers.gce.money.refresh import refresh

    refresh(project=config.gce.project, on_progress=on_progress)
