"""Compute Engine: nodes are VMs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hvdcloud.providers.gce.provider import GceProvider

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.providers.gce.api.client import ComputeClient

__all__ = ["GceProvider", "connect"]


def connect(config: Config, *, on_retry: Callable[[str], None]) -> GceProvider:
    """The provider in the project that the configuration or the credentials name. Nothing is asked yet.

    Args:
        on_retry: called with a line for people when a request is about to be sent again; from any thread.
    """

    def client() -> ComputeClient:
        from hvdcloud.providers.gce.api.client import connect_client

        connected = connect_client(project=config.gce.project, endpoint=config.gce.endpoint)
        connected.on_retry = on_retry
        return connected

    return GceProvider(config.gce, config.limits, client=client)
