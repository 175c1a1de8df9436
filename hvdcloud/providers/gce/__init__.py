"""Compute Engine: nodes are VMs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.providers.gce.provider import GceProvider

if TYPE_CHECKING:
    from hvdcloud.config import Config

__all__ = ["GceProvider", "connect"]


def connect(config: Config) -> GceProvider:
    """The provider in the project that the configuration or the credentials name. Nothing is asked yet."""
    from hvdcloud.providers.gce.client import connect_client

    return GceProvider(
        config.gce,
        config.limits,
        client=lambda: connect_client(project=config.gce.project, endpoint=config.gce.endpoint),
    )
