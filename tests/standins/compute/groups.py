"""Managed instance groups and their resize requests: CREATING → ACCEPTED → SUCCEEDED, FAILED or CANCELLED.

How long a request waits is the test's to say: `Emulator.grant` and `Emulator.refuse`. Sources: the discovery document,
and https://docs.cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig. The functions are called under
the world's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.standins.compute.lifecycle import Lifecycle
from tests.standins.compute.operations import Operation
from tests.standins.compute.resources.build import build
from tests.standins.compute.rules import Shape
from tests.standins.compute.state import Vm

ACTIVE = ("CREATING", "ACCEPTED")


@dataclass(eq=False, slots=True, kw_only=True)
class ResizeRequest:
    """A request for VMs of these names, all at once.

    Attributes:
        granted: there is room, and they are being made.
    """

    resource: dict[str, Any]
    names: Sequence[str]
    granted: bool = False

    @property
    def active(self) -> bool:
        return self.resource["state"] in ACTIVE

    def update(self, **changes: Any) -> None:
        self.resource = {**self.resource, **changes}


@dataclass(eq=False, slots=True, kw_only=True)
class Group:
    """A managed instance group of one zone.

    Attributes:
        properties, shape: of its template.
        deleting: the operation that deletes it, once asked for.
        settled: what waits until no request is being fulfilled.
    """

    zone: str
    resource: dict[str, Any]
    properties: Mapping[str, Any]
    shape: Shape
    vms: list[Vm] = field(default_factory=list)
    requests: dict[str, ResizeRequest] = field(default_factory=dict)
    deleting: Operation | None = None
    settled: list[Callable[[], None]] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.resource["name"])

    @property
    def repairs(self) -> bool:
        policy = self.resource.get("instanceLifecyclePolicy", {})
        return bool(policy.get("defaultActionOnFailure", "REPAIR") == "REPAIR")

    def resize(self, by: int) -> None:
        self.resource = {**self.resource, "targetSize": self.resource["targetSize"] + by}


def accept(lifecycle: Lifecycle, group: Group, request: ResizeRequest) -> None:
    """It is in the queue; its VMs are PENDING, which costs nothing."""
    if group.deleting is not None or not request.active:
        return
    request.update(state="ACCEPTED")
    group.resize(len(request.names))
    for name in request.names:
        _add(lifecycle, group, name)


def grant(lifecycle: Lifecycle, group: Group, request: ResizeRequest) -> None:
    """Make its VMs, all of them; without quota it waits on, and says so."""
    world = lifecycle.world
    if request.resource["state"] != "ACCEPTED" or request.granted:
        return
    needs = world.quotas.needs(group.shape, group.zone)
    room, exceeded = world.quotas.room(needs, world.used(), len(request.names))
    if exceeded is not None and room < len(request.names):
        request.update(status={"lastAttempt": {"error": {"errors": [exceeded.error()]}}})
        return
    request.granted = True

    def done() -> None:
        request.update(state="SUCCEEDED", status={})
        for action in group.settled:
            action()
        group.settled.clear()

    there = world.vms[group.zone]
    # What was deleted while it waited is made again.
    _make(lifecycle, group, [there.get(name) or _add(lifecycle, group, name) for name in request.names], done)


def fail(lifecycle: Lifecycle, group: Group, request: ResizeRequest, errors: Sequence[Mapping[str, Any]]) -> None:
    """It will not be tried again."""
    if request.active and not request.granted:
        request.update(state="FAILED", status={"error": {"errors": list(errors)}})
        _drop(lifecycle, group, request)


def cancel(lifecycle: Lifecycle, group: Group, request: ResizeRequest) -> None:
    """It leaves the queue, and so do its VMs."""
    if request.active and not request.granted:
        request.update(state="CANCELLED", status={})
        _drop(lifecycle, group, request)


def delete(lifecycle: Lifecycle, group: Group, operation: Operation, *, slow: float = 0.0) -> None:
    """Delete it with its requests and VMs; while a request is being fulfilled, only after that."""
    world = lifecycle.world
    group.deleting = operation

    def begin() -> None:
        with world.lock:
            operation.start()
            if any(request.active and request.granted for request in group.requests.values()):
                group.settled.append(end)
            else:
                end()

    def end() -> None:
        for request in group.requests.values():
            cancel(lifecycle, group, request)
        left = [vm for vm in group.vms if world.vms[group.zone].get(vm.name) is vm]
        if not left:
            gone()

        for vm in left:

            def one_less(vm: Vm = vm) -> None:
                left.remove(vm)
                if not left:
                    gone()

            vm.gone.append(one_less)
            lifecycle.delete(vm, lifecycle.system_operation("delete", vm))

    def gone() -> None:
        world.groups[group.zone].pop(group.name, None)
        operation.finish()

    world.clock.after(world.delays.start + slow, begin)


def _add(lifecycle: Lifecycle, group: Group, name: str) -> Vm:
    world = lifecycle.world
    vm, disks = build(world, group.properties, group.shape, zone=group.zone, name=name)
    place = f"projects/{world.number}/zones/{group.zone}/instanceGroupManagers/{group.name}"
    metadata = vm.resource["metadata"]
    items = [*metadata.get("items", []), {"key": "created-by", "value": place}]
    vm.update(status="PENDING", metadata={**metadata, "items": items})
    # Nothing is under way: it may be deleted at once.
    vm.created = True
    lifecycle.add(vm, disks)
    group.vms.append(vm)
    vm.gone.append(lambda: _repair(lifecycle, group, vm))
    return vm


def _make(lifecycle: Lifecycle, group: Group, vms: Sequence[Vm], done: Callable[[], None]) -> None:
    world = lifecycle.world
    vms = [vm for vm in vms if vm.deleting is None]
    for vm in vms:
        vm.created = False
        vm.update(status="PROVISIONING")

    def stage() -> None:
        with world.lock:
            for vm in vms:
                lifecycle.stage(vm)
        world.clock.after(world.delays.create, run)

    def run() -> None:
        with world.lock:
            for vm in vms:
                lifecycle.run(vm)
            done()

    world.clock.after(world.delays.start, stage)


def _repair(lifecycle: Lifecycle, group: Group, vm: Vm) -> None:
    """A VM that is gone without the group's doing is made again, unless the group was told not to."""
    group.vms.remove(vm)
    if vm.resource.get("lastStartTimestamp") and group.deleting is None and group.repairs:
        _make(lifecycle, group, [_add(lifecycle, group, vm.name)], lambda: None)


def _drop(lifecycle: Lifecycle, group: Group, request: ResizeRequest) -> None:
    group.resize(-len(request.names))
    for vm in list(group.vms):
        if vm.name in request.names and vm.deleting is None:
            lifecycle.delete(vm, lifecycle.system_operation("delete", vm))
