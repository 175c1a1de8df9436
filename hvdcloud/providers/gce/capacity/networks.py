"""The subnetworks that nodes may be in, and how nodes without an external address get their driver and their image.

Artifact Registry, Cloud Storage and the driver's download are Google's: Private Google Access leads there, which is off
in the subnetworks that a network of auto mode makes (https://cloud.google.com/vpc/docs/configure-private-google-access).
A Deep Learning VM installs packages from the internet, which takes a NAT.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdcloud.google.errors import ApiError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import Problem
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.capacity.candidates import in_network
from hvdcloud.providers.gce.names import last_segment
from hvdcloud.providers.gce.plan import firewall
from hvdcloud.providers.gce.plan.request import network_path, same_path, subnetwork_path
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.units import some

Subnetwork = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOut:
    """Where nodes without an external address get what they need."""

    open: frozenset[str] = frozenset()
    """Regions."""
    closed: Mapping[str, Subnetwork] = field(default_factory=dict)
    """Region → the subnetwork from which they do not."""
    sure: bool = True
    """False: there may be NATs that we may not see."""

    def closed_in(self, regions: Collection[str], settings: Settings) -> Problem | None:
        """Why nodes get nowhere from all of these regions; None: from one of them they do, as far as is known."""
        if not regions or not self.closed.keys() >= set(regions):
            return None
        region = next(iter(regions))
        subnetwork = self.closed[region]
        where = f"subnetwork {subnetwork['name']} in {some(list(regions), most=4)}"
        if settings.vm_image_profile == "dlvm":
            message = f"without an external address nodes cannot install packages: {where} has no NAT"
            return Problem(message=message, hint="hvdcloud setup --nat makes one; or set gce.vm_image: cos")
        message = "without an external address nodes cannot fetch their driver and image: "
        message += f"{where} has no Private Google Access"
        command = (
            f"gcloud compute networks subnets update {subnetwork['name']} --region={region} "
            f"--project={settings.network_project} --enable-private-ip-google-access"
        )
        return Problem(message=message, hint=command)


def needed(settings: Settings) -> str:
    """What nodes without an external address need of their subnetwork."""
    return "a NAT" if settings.vm_image_profile == "dlvm" else "Private Google Access"


def subnetworks(client: ComputeClient, settings: Settings) -> Sequence[Subnetwork]:
    """The subnetworks that nodes may be in, at most one for each region.

    Raises ApiError: they cannot be read.
    """
    if region := settings.subnetwork_region:
        return [client.transport.read(subnetwork_path(settings, region))]
    # Those that a network of auto mode makes have its name.
    name = settings.subnetwork_name or last_segment(network_path(settings))
    return in_network(client.subnetworks(name, project=settings.network_project).items, settings)


def missing_rules(client: ComputeClient, settings: Settings) -> Problem | None:
    """What the host project of a Shared VPC lacks: as `firewall.missing_in_shared_vpc`.

    Raises ApiError: its rules or its subnetworks cannot be read.
    """
    asked: list[Callable[[], Any]] = [
        lambda: client.firewalls(settings.network_project),
        lambda: [str(each["ipCidrRange"]) for each in subnetworks(client, settings)],
    ]
    existing, ranges = side_by_side(lambda ask: ask(), asked, only_reads=True)
    return firewall.missing_in_shared_vpc(settings, existing=existing, ranges=ranges)


def way_out(client: ComputeClient, settings: Settings) -> WayOut:
    """What it is for nodes without an external address.

    Raises ApiError: the subnetworks cannot be read.
    """

    def routers() -> Sequence[Mapping[str, Any]] | None:
        try:
            return client.routers(project=settings.network_project).items
        except ApiError:
            # Few roles have compute.routers.list.
            return None

    asked: list[Callable[[], Any]] = [lambda: subnetworks(client, settings), routers]
    found, nats = side_by_side(lambda ask: ask(), asked, only_reads=True)
    google_is_enough = settings.vm_image_profile == "cos"
    by_region = {last_segment(each["region"]): each for each in found}
    closed = {
        region: each
        for region, each in by_region.items()
        if not (google_is_enough and each.get("privateIpGoogleAccess", False))
        # A NAT of a subnetwork switches Private Google Access on: https://cloud.google.com/nat/docs/overview
        and not any(_has_nat(router, each) for router in nats or ())
    }
    return WayOut(open=frozenset(by_region.keys() - closed.keys()), closed=closed, sure=nats is not None)


def _has_nat(router: Mapping[str, Any], subnetwork: Subnetwork) -> bool:
    if last_segment(router.get("region", "")) != last_segment(subnetwork["region"]):
        return False
    return same_path(str(router.get("network", "")), str(subnetwork["network"])) and any(
        nat.get("type", "PUBLIC") == "PUBLIC"
        and (
            str(nat.get("sourceSubnetworkIpRangesToNat", "")).startswith("ALL_SUBNETWORKS")
            or any(same_path(str(each["name"]), str(subnetwork["selfLink"])) for each in nat.get("subnetworks", ()))
        )
        for nat in router.get("nats", ())
    )
