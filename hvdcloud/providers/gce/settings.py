"""From hvdcloud.yaml's sections to what every cluster of one configuration has, and which of its nodes are alike."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.ssh_access import IAP, is_public
from hvdcloud.providers.pricing import Spot

if TYPE_CHECKING:
    from hvdcloud.config.gce import GceConfig
    from hvdcloud.config.model import LimitsConfig


DEFAULT_ACCOUNT = "default"
"""As `gce.service_account`, and as the API names it: the project's default service account."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is the same for every cluster of one configuration."""

    project: str
    machine_type: str
    gpu_type: str | None
    gpu_count: int
    spot: Spot
    """Which nodes are Spot VMs; `workers` are all but the head."""
    disk_gb: int
    vm_image_profile: Literal["cos", "dlvm"]
    network: str | None
    """Name or URL; None: the subnetwork's, else `default`."""
    subnetwork: str | None
    """URL: of one region; name: of one in each region that nodes may be in."""
    service_account: str | None
    """E-mail address, or DEFAULT_ACCOUNT; None: not chosen, and no node is made."""
    ssh_source: str
    """`iap`, or one range of IPv4 addresses: `198.51.100.7/32`."""
    max_run_seconds: int
    max_cost: float | None
    """Dollars for all nodes together, over their whole life."""
    idle_seconds: float | None = None
    """Without a run and without an SSH session, after which the nodes end themselves; None: never."""
    endpoint: str | None = None
    """Another Compute API endpoint than Google's, for the nodes."""
    storage_endpoint: str | None = None
    """Another Cloud Storage endpoint than Google's, for the nodes' data sets."""
    settled_at: float = 0.0
    """Until then, in seconds since 1970, the registry may refuse nodes what `setup` has granted them."""
    head_machine_type: str | None = None
    """The head's, which then has no other GPUs than those that come with it; None: as the others'."""
    local_ssd: int = 0
    """How many are attached to every node whose machine type brings none of its own; of 375 GB each."""

    @property
    def needs_external_ip(self) -> bool:
        """The laptop comes over the internet."""
        return self.ssh_source != IAP and is_public(self.ssh_source)

    @property
    def head_drives_only(self) -> bool:
        """The head takes no ranks: the others have GPUs, and it has none. Raises UsageError: an unknown type."""
        return self.head_machine_type is not None and not kind_of(self, 0).gpus[1] and kind_of(self, 1).gpus[1] > 0

    @property
    def network_project(self) -> str:
        """The project that the network and its firewall rules belong to: of a Shared VPC, the host project."""
        path = next((path for path in (self.network, self.subnetwork) if path and "projects/" in path), None)
        return path.partition("projects/")[2].partition("/")[0] if path else self.project

    @property
    def shared_vpc(self) -> bool:
        """The network is another project's, whose administrator makes its firewall rules."""
        return self.network_project != self.project

    @property
    def subnetwork_region(self) -> str | None:
        """The region that `gce.subnetwork`, given as a URL, pins the nodes to; None: any."""
        _, found, rest = (self.subnetwork or "").partition("regions/")
        return rest.partition("/")[0] if found else None

    @property
    def subnetwork_name(self) -> str | None:
        """`gce.subnetwork` given as a name, which several regions may have."""
        return self.subnetwork if self.subnetwork and "/" not in self.subnetwork else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Nodes that are made alike, by one request."""

    kind: NodeKind
    indices: tuple[int, ...]

    @property
    def nodes(self) -> int:
        """How many."""
        return len(self.indices)


def kind_of(settings: Settings, index: int) -> NodeKind:
    """What node `index` is; 0 is the head."""
    spot = settings.spot == "all" or (settings.spot == "workers" and index > 0)
    if index == 0 and settings.head_machine_type:
        return NodeKind(machine_type=settings.head_machine_type, spot=spot)
    gpu_type, gpu_count = settings.gpu_type, settings.gpu_count
    return NodeKind(machine_type=settings.machine_type, gpu_type=gpu_type, gpu_count=gpu_count, spot=spot)


def groups(settings: Settings, indices: Iterable[int]) -> list[Group]:
    """These nodes, those that are alike together; the head's last: of its kind a zone has room more often."""
    found: dict[NodeKind, list[int]] = {}
    for index in indices:
        found.setdefault(kind_of(settings, index), []).append(index)
    made = [Group(kind=kind, indices=tuple(alike)) for kind, alike in found.items()]
    return sorted(made, key=lambda group: 0 in group.indices)


def attached_local_ssds(settings: Settings, kind: NodeKind) -> int:
    """How many are attached to a node of this kind: those that it brings come by themselves. Raises as `machine`."""
    return 0 if catalog.machine(kind.machine_type).local_ssd_gb else settings.local_ssd


def local_ssds(settings: Settings, kind: NodeKind) -> int:
    """How many a node of this kind has, attached ones or its own. Raises as `machine`."""
    own_gb = catalog.machine(kind.machine_type).local_ssd_gb
    return own_gb // catalog.LOCAL_SSD_GB or attached_local_ssds(settings, kind)


def settings_of(
    config: GceConfig,
    limits: LimitsConfig,
    *,
    project: str,
    ssh_source: str,
    settled_at: float = 0.0,
    storage_endpoint: str | None = None,
) -> Settings:
    """The settings of a configuration; `ssh_source` as `ssh_access.caller_source` found it."""
    gpu = config.gpu
    return Settings(
        project=project,
        machine_type=config.machine_type,
        gpu_type=gpu.type if gpu else None,
        gpu_count=gpu.count if gpu else 0,
        spot=config.spot or "none",
        head_machine_type=config.head_machine_type,
        disk_gb=config.disk_gb,
        local_ssd=config.local_ssd,
        vm_image_profile=config.vm_image,
        network=config.network,
        subnetwork=config.subnetwork,
        service_account=config.service_account,
        ssh_source=ssh_source,
        max_run_seconds=int(limits.max_run_duration),
        max_cost=limits.max_cost,
        idle_seconds=limits.idle,
        endpoint=config.endpoint,
        settled_at=settled_at,
        storage_endpoint=storage_endpoint,
    )
