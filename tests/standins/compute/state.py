"""The world: every resource of one project, and the one lock that guards them.

A stored resource is in the form in which the API answers it, and is replaced when something changes, never altered: an
answer that was put together under the lock may be written out without it.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.standins.compute.catalogue import REGION_OF, ZONES
from tests.standins.compute.clock import Clock, Timer, timestamp
from tests.standins.compute.errors import not_found
from tests.standins.compute.faults import Faults
from tests.standins.compute.lists import HOST
from tests.standins.compute.operations import Operation, Operations
from tests.standins.compute.policies import Policies
from tests.standins.compute.quota import Key, Quotas, total
from tests.standins.compute.rules import Shape

if TYPE_CHECKING:
    from tests.standins.compute.groups import Group

SERIAL_BYTES = 1 << 20


@dataclass(slots=True, kw_only=True)
class Delays:
    """Seconds.

    Attributes:
        start: an operation is PENDING.
        create: an insert operation is RUNNING.
        delete: a delete operation is RUNNING, once the machine is off.
        other: any other operation is RUNNING.
    """

    start: float = 0.02
    create: float = 0.1
    delete: float = 0.1
    other: float = 0.05


@dataclass(eq=False, slots=True, kw_only=True)
class Vm:
    """An instance, and what the API doesn't show of it.

    Attributes:
        created: the insert operation is over.
        deleting: the operation that deletes it, once asked for.
        gone: what waits for its end.
        made: when, as of time.monotonic().
        last: the last thing that the backing was asked to do for it.
    """

    zone: str
    resource: dict[str, Any]
    shape: Shape
    created: bool = False
    deleting: Operation | None = None
    gone: list[Callable[[], None]] = field(default_factory=list)
    serial: bytearray = field(default_factory=bytearray)
    serial_start: int = 0
    guest: dict[tuple[str, str], str] = field(default_factory=dict)
    preempted: bool = False
    made: float = field(default_factory=time.monotonic)
    limit: Timer | None = None
    last: Future[None] | None = None
    fault: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.resource["name"])

    @property
    def status(self) -> str:
        return str(self.resource["status"])

    def update(self, **changes: Any) -> None:
        self.resource = {**self.resource, **changes}

    def write_serial(self, text: str) -> None:
        self.serial += text.encode()
        if (extra := len(self.serial) - SERIAL_BYTES) > 0:
            del self.serial[:extra]
            self.serial_start += extra


class Workers:
    """Everything there is in one project.

    Args:
        project: its id.
        networks: name → region → CIDR of its subnetwork, beside `default`.
        delays: of operations.
    """

    def __init__(
        self,
        *,
        project: str,
        networks: Mapping[str, Mapping[str, str]],
        delays: Delays,
    ) -> None:
        self.project = project
        self.number = "123456789012"
        self.root = f"{HOST}/projects/{project}"
        self.delays = delays
        self.lock = threading.RLock()
        self.clock = Clock()
        self.faults = Faults()
        self.quotas = Quotas()
        self.policies = Policies()
        self._networks = {"default": _default_subnetworks(), **networks}
        self._ids = itertools.count((int(time.time()) << 30) | secrets.randbits(20))
        self._clear()

    def _clear(self) -> None:
        self.operations = Operations(root=self.root)
        self.vms: dict[str, dict[str, Vm]] = {zone: {} for zone in REGION_OF}
        self.disks: dict[str, dict[str, dict[str, Any]]] = {zone: {} for zone in REGION_OF}
        self.firewalls: dict[str, dict[str, Any]] = {}
        self.resource_policies: dict[str, dict[str, dict[str, Any]]] = {region: {} for region in ZONES}
        self.templates: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, dict[str, Group]] = {zone: {} for zone in REGION_OF}
        self.reservations: dict[str, dict[str, dict[str, Any]]] = {zone: {} for zone in REGION_OF}
        self.future_reservations: dict[str, list[dict[str, Any]]] = {zone: [] for zone in REGION_OF}
        # zone → where an aggregated list says that it can't be seen: "warning", "list"
        self.unreachable: dict[str, frozenset[str]] = {}
        # Seconds by which lists of VMs are late, and what they may still show: when it went, as of time.monotonic().
        self.list_lag = 0.0
        self.departed: list[tuple[float, Vm]] = []
        self.networks: dict[str, dict[str, Any]] = {}
        self.subnetworks: dict[str, dict[str, dict[str, Any]]] = {region: {} for region in ZONES}
        for name, ranges in self._networks.items():
            self.add_network(name, ranges)

    def reset(self) -> None:
        """As it was at the start. The machines must be gone already."""
        with self.lock:
            self.clock.clear()
            self.faults.clear()
            self.quotas.reset()
            self.policies.clear()
            self._clear()

    # -- making resources ------------------------------------------------------------------------------------------

    def base(self, kind: str, path: str, name: str) -> dict[str, Any]:
        """What every resource has; `path` as in "zones/us-central1-a/disks"."""
        return {
            "kind": f"compute#{kind}",
            "id": str(next(self._ids)),
            "creationTimestamp": timestamp(),
            "name": name,
            "selfLink": f"{self.root}/{path}/{name}",
        }

    def add_network(self, name: str, ranges: Mapping[str, str]) -> None:
        """A VPC network with one subnetwork of its name per region."""
        link = f"{self.root}/global/networks/{name}"
        for region, cidr in ranges.items():
            self.subnetworks[region][name] = {
                **self.base("subnetwork", f"regions/{region}/subnetworks", name),
                "network": link,
                "ipCidrRange": cidr,
                "region": f"{self.root}/regions/{region}",
                "purpose": "PRIVATE",
                "stackType": "IPV4_ONLY",
            }
        links = [found[name]["selfLink"] for found in self.subnetworks.values() if name in found]
        self.networks[name] = {
            **self.base("network", "global/networks", name),
            "autoCreateSubnetworks": name == "default",
            "mtu": 1460,
            "routingConfig": {"routingMode": "REGIONAL"},
            "subnetworks": links,
        }

    # -- looking at them -------------------------------------------------------------------------------------------

    def vm(self, zone: str, name: str) -> Vm:
        """By name.

        Raises:
            ApiError: 404.
        """
        found = self.vms[zone].get(name) if zone in self.vms else None
        if found is None:
            raise not_found(f"projects/{self.project}/zones/{zone}/instances/{name}")
        return found

    def all_vms(self) -> Iterator[Vm]:
        for zone in self.vms.values():
            yield from zone.values()

    def all_groups(self) -> Iterator[Group]:
        for zone in self.groups.values():
            yield from zone.values()

    def listed_vms(self) -> Iterator[Vm]:
        """What lists show: the VMs that there were a while ago."""
        then = time.monotonic() - self.list_lag
        gone = [vm for at, vm in self.departed if at > then]
        yield from (vm for vm in [*self.all_vms(), *gone] if vm.made <= then)

    def used(self) -> Counter[Key]:
        """What the instances take of the quotas."""
        return total(
            self.quotas.needs(vm.shape, vm.zone, running=vm.status not in ("TERMINATED", "STOPPED", "PENDING"))
            for vm in self.all_vms()
        )

    # -- for tests -------------------------------------------------------------------------------------------------

    def instances(self) -> list[dict[str, Any]]:
        with self.lock:
            return [vm.resource for vm in self.all_vms()]

    def all_disks(self) -> list[dict[str, Any]]:
        with self.lock:
            return [disk for zone in self.disks.values() for disk in zone.values()]

    def all_firewalls(self) -> list[dict[str, Any]]:
        with self.lock:
            return list(self.firewalls.values())

    def all_operations(self) -> list[dict[str, Any]]:
        with self.lock:
            return [operation.resource for operation in self.operations.all()]

    def left(self) -> list[str]:
        """What is still there and costs money, makes what does, or opens a port: selfLinks."""
        with self.lock:
            makers = [*(group.resource for group in self.all_groups()), *self.templates.values()]
            policies = [one for there in self.resource_policies.values() for one in there.values()]
        found = (*self.instances(), *self.all_disks(), *self.all_firewalls(), *makers, *policies)
        return [one["selfLink"] for one in found]


def _default_subnetworks() -> dict[str, str]:
    """As in a network of auto mode: https://cloud.google.com/vpc/docs/subnets#ip-ranges."""
    return {region: f"10.{128 + 2 * index}.0.0/20" for index, region in enumerate(ZONES)}
