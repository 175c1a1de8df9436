"""From hvdcloud.yaml's sections to what every cluster of one configuration has, and which of its nodes are alike."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.google.grants import settled_at
from hvdcloud.google.http import ENDPOINT_VARIABLE
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.ssh_access import AUTO, IAP, SOMEWHERE, is_public
from hvdcloud.storage.open import storage_endpoint

if TYPE_CHECKING:
    from hvdcloud.config.gce import GceConfig, Provisioning
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
    provisioning: Provisioning
    elastic: bool = False
    """Runs survive the loss of any node but the head, which then is no Spot VM."""
    reservation: str | None = None
    """Name or path of the one that nodes take machines of."""
    reservation_bound: bool = False
    """Its machines end with it."""
    placement: bool = False
    """Nodes are close to each other, where their machine type can be (gce.placement: auto)."""
    disk_gb: int
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

    @property
    def flex_start(self) -> bool:
        """All nodes start at once, as soon as there is room for them."""
        return self.provisioning == "flex-start"

    @property
    def needs_external_ip(self) -> bool:
        """The laptop comes over the internet."""
        return self.ssh_source != IAP and is_public(self.ssh_source)

    @property
    def subnetwork_region(self) -> str | None:
        """The region that `gce.subnetwork`, given as a URL, pins the nodes to; None: any."""
        _, found, rest = (self.subnetwork or "").partition("regions/")
        return rest.partition("/")[0] if found else None


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
    kept = settings.provisioning == "spot" and settings.elastic and index == 0
    return NodeKind(
        machine_type=settings.machine_type,
        gpu_type=settings.gpu_type,
        gpu_count=settings.gpu_count,
        provisioning="standard" if kept else settings.provisioning,
    )


def groups(settings: Settings, indices: Iterable[int]) -> list[Group]:
    """These nodes, those that are alike together; the head's last: of its kind a zone has room more often."""
    found: dict[NodeKind, list[int]] = {}
    for index in indices:
        found.setdefault(kind_of(settings, index), []).append(index)
    made = [Group(kind=kind, indices=tuple(alike)) for kind, alike in found.items()]
    return sorted(made, key=lambda group: 0 in group.indices)


def settings_of(
    config: GceConfig, limits: LimitsConfig, *, project: str, elastic: bool = False, ssh_source: str | None = None
) -> Settings:
    """The settings of a configuration and of the environment.

    Args:
        elastic: runs are (run.elastic).
        ssh_source: as `ssh_access.caller_source` found it; None: that was not asked for.
    """
    gpu, given = config.gpu, config.ssh.source
    return Settings(
        project=project,
        machine_type=config.machine_type,
        gpu_type=gpu.type if gpu else None,
        gpu_count=gpu.count if gpu else 0,
        provisioning=config.provisioning or "standard",
        elastic=elastic,
        reservation=config.reservation,
        placement=config.placement == "auto",
        disk_gb=config.disk_gb,
        network=config.network,
        subnetwork=config.subnetwork,
        service_account=config.service_account,
        ssh_source=ssh_source or (SOMEWHERE if given == AUTO else given),
        max_run_seconds=int(limits.max_run_duration),
        max_cost=limits.max_cost,
        idle_seconds=limits.idle,
        endpoint=os.environ.get(ENDPOINT_VARIABLE),
        settled_at=settled_at(project),
        storage_endpoint=storage_endpoint(),
    )
