"""The subnetworks that nodes may be in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.capacity.candidates import in_network
from hvdcloud.providers.gce.names import last_segment
from hvdcloud.providers.gce.plan.request import network_path, subnetwork_path
from hvdcloud.providers.gce.settings import Settings


def subnetworks(client: ComputeClient, settings: Settings) -> Sequence[Mapping[str, Any]]:
    """The subnetworks that nodes may be in, at most one for each region.

    Raises ApiError: they cannot be read.
    """
    if region := settings.subnetwork_region:
        return [client.subnetwork(subnetwork_path(settings, region))]
    # Those that a network of auto mode makes have its name.
    name = settings.subnetwork_name or last_segment(network_path(settings))
    return in_network(client.subnetworks(name).items, settings)
