"""instances.bulkInsert.

A bulkInsert has one operation of its own and one `insert` operation per VM, all in one group. If fewer than minCount
VMs can be made, those that were made are deleted again; the counters then count them as created and as deleted.
https://cloud.google.com/compute/docs/instances/multiple/about-bulk-creation
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.standins.compute.call import Call, implements, scripted
from tests.standins.compute.errors import ApiError, invalid, invalid_field, not_implemented
from tests.standins.compute.operations import Operation
from tests.standins.compute.resources.build import build, interfaces_of
from tests.standins.compute.resources.reservations import check_reservation
from tests.standins.compute.resources.resource_policies import check_policies
from tests.standins.compute.rules import Shape, check_name, shape_of
from tests.standins.compute.state import Vm

_UNKNOWN = {"instanceFlexibilityPolicy", "locationPolicy", "namePattern", "sourceInstanceTemplate"}
_HTTP = {
    "CONDITION_NOT_MET": 412,
    "EXTERNAL_RESOURCE_NOT_FOUND": 404,
    "QUOTA_EXCEEDED": 403,
    "RESOURCE_ALREADY_EXISTS": 409,
    "INTERNAL_ERROR": 500,
}


@dataclass(eq=False, slots=True)
class _Part:
    """One VM of a request."""

    name: str
    operation: Operation
    error: dict[str, Any] | None = None
    vm: Vm | None = None


@dataclass(eq=False, slots=True)
class _Bulk:
    """One request on its way."""

    call: Call
    operation: Operation
    properties: Mapping[str, Any]
    shape: Shape | None
    names: list[str]
    minimum: int
    fault: Mapping[str, Any]
    parts: list[_Part] = field(default_factory=list)

    # -- the three steps: each is called by the clock ----------------------------------------------------------------

    def begin(self) -> None:
        """The VMs exist (PROVISIONING), as many as there is room for; the others have an error."""
        call, world = self.call, self.call.world
        with world.lock:
            self.operation.start()
            for name in self.names:
                target = {"selfLink": f"{world.root}/zones/{call.zone}/instances/{name}", "id": _unknown_id()}
                operation = world.operations.create(
                    "insert",
                    scope=f"zones/{call.zone}",
                    target=target["selfLink"],
                    target_id=target["id"],
                    user=call.user,
                    group=self.operation.resource["operationGroupId"],
                )
                self.parts.append(_Part(name, operation))
            self._make()
            self._count("CREATING")
        world.clock.after(world.delays.start, self.stage)

    def stage(self) -> None:
        """STAGING; what can't be made has failed."""
        world = self.call.world
        with world.lock:
            for part in self.parts:
                part.operation.start()
                if part.vm is not None:
                    self.call.lifecycle.stage(part.vm)
        world.clock.after(world.delays.create + self.fault.get("slow", 0.0), self.run)

    def run(self) -> None:
        """RUNNING; or back, if they are too few."""
        world = self.call.world
        with world.lock:
            for part in self.parts:
                if part.error is not None:
                    part.operation.finish([part.error], http=self._http(part.error))
                elif part.vm is not None:
                    part.operation.finish()
                    self.call.lifecycle.run(part.vm)
            made = [part.vm for part in self.parts if part.vm is not None]
            if len(made) >= self.minimum:
                self._end([scripted(self.fault["operation_error"])] if "operation_error" in self.fault else [])
                return
            self._count("ROLLING_BACK")
            self._roll_back(made)

    # -- what they do --------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        world, zone = self.call.world, self.call.zone
        room, obstacle = self._room()
        for part in self.parts:
            if part.name in world.vms[zone] or part.name in world.disks[zone]:
                kind = "instances" if part.name in world.vms[zone] else "disks"
                path = self.call.url(f"zones/{zone}/{kind}/{part.name}")
                part.error = {"code": "RESOURCE_ALREADY_EXISTS", "message": f"The resource '{path}' already exists"}
            elif room == 0 or self.shape is None:
                part.error = obstacle
            else:
                room -= 1
                vm, disks = build(world, self.properties, self.shape, zone=zone, name=part.name)
                part.operation.update(targetId=vm.resource["id"])
                part.vm = vm
                self.call.lifecycle.add(vm, disks)

    def _room(self) -> tuple[int, dict[str, Any]]:
        """How many VMs can be made, and why not more."""
        world, zone, count = self.call.world, self.call.zone, len(self.names)
        if self.shape is None:
            code = f"{secrets.randbits(62)}"
            text = f"Internal error. Please try again or contact Google Support. (Code: '{code}')"
            return 0, {"code": "INTERNAL_ERROR", "message": text}
        room, exceeded = world.quotas.room(world.quotas.needs(self.shape, zone), world.used(), count)
        error: dict[str, Any] = exceeded.error() if exceeded else {}
        if (stockout := self.fault.get("stockout")) is not None and stockout.get("after", 0) < room:
            place = f"projects/{world.project}/zones/{zone}"
            text = (
                f"The zone '{place}' does not have enough resources available to fulfill the request.  "
                "Try a different zone, or try again later."
            )
            room = stockout.get("after", 0)
            error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": text}
        path = f"projects/{world.project}/zones/{zone}/instances/{self.names[0]}"
        if refused := world.policies.refusals(path, self.properties, zone=zone, project=world.number):
            room, error = 0, {"code": "CONDITION_NOT_MET", "message": refused[0]}
        if "operation_error" in self.fault and not self.fault.get("effect"):
            room, error = 0, scripted(self.fault["operation_error"])
        return room, error

    def _roll_back(self, made: list[Vm]) -> None:
        world, zone = self.call.world, self.call.zone
        left = len(made)

        def one_less() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                self._end(self._errors())

        if not made:
            self._end(self._errors())
        for vm in made:
            operation = world.operations.create(
                "delete",
                scope=f"zones/{zone}",
                target=vm.resource["selfLink"],
                target_id=vm.resource["id"],
                user=self.call.user,
                group=self.operation.resource["operationGroupId"],
            )
            vm.gone.append(one_less)
            self.call.lifecycle.delete(vm, operation)

    def _errors(self) -> list[dict[str, Any]]:
        """The bulk operation's errors: a summary, then the causes, once each; the fault plan may leave out either."""
        causes: list[dict[str, Any]] = []
        for part in self.parts:
            if part.error is not None and part.error not in causes:
                causes.append(part.error)
        text = f"Requested minimum count of {self.minimum} VMs could not be created."
        summary = {"code": "VM_MIN_COUNT_NOT_REACHED", "message": text}
        if "operation_error" in self.fault:
            return causes
        return [summary] if self.fault.get("stockout", {}).get("report") == "summary" else [summary, *causes]

    def _end(self, errors: list[dict[str, Any]]) -> None:
        self._count("DONE")
        if self.operation.done.is_set():
            return
        http = self._http(next((error for error in errors if error["code"] in _HTTP), errors[-1])) if errors else None
        self.operation.finish(errors, http=http)

    def _http(self, error: Mapping[str, Any]) -> int | None:
        if "operation_error" in self.fault:
            http: int | None = self.fault["operation_error"].get("http")
            return http
        return _HTTP.get(error["code"], 503)

    def _count(self, status: str) -> None:
        """The counters of the bulk operation."""
        made = [part.vm for part in self.parts if part.vm is not None]
        zone = self.call.zone
        self.operation.update(
            instancesBulkInsertOperationMetadata={
                "perLocationStatus": {
                    f"zones/{zone}": {
                        "status": status,
                        "targetVmCount": len(self.parts),
                        "createdVmCount": sum(vm.created for vm in made),
                        "failedToCreateVmCount": sum(part.error is not None for part in self.parts),
                        "deletedVmCount": sum(self.call.world.vms[zone].get(vm.name) is not vm for vm in made),
                    }
                }
            }
        )


@implements("instances.bulkInsert")
def bulk_insert(call: Call) -> dict[str, Any]:
    world, body, zone = call.world, call.body, call.zone
    if unsupported := _UNKNOWN & set(body):
        raise not_implemented(f"{', '.join(sorted(unsupported))} of bulkInsert")
    if "instanceProperties" not in body:
        raise ApiError(400, "required", "Required field 'resource.instanceProperties' not specified")
    names = _names(call)
    minimum = int(body.get("minCount", len(names)))
    if not 1 <= minimum <= len(names):
        raise invalid_field("resource.minCount", minimum, "Must be 1 to count.")
    properties = body["instanceProperties"]
    # What became of a URL in place of the bare name, according to those who tried.
    shape = None if "/" in properties.get("machineType", "") else shape_of(properties, zone=zone)
    interfaces_of(world, properties, zone)
    check_policies(world, properties, zone)
    check_reservation(world, properties, zone, count=len(names))
    path = f"projects/{world.project}/zones/{zone}/instances/{names[0]}"
    if refused := world.policies.refusals(path, properties, zone=zone, project=world.number, at_once=True):
        raise ApiError(412, "conditionNotMet", refused[0])
    if len(names) > 1 and any("diskName" in one.get("initializeParams", {}) for one in properties["disks"]):
        raise invalid("initializeParams.diskName can't be set for several VMs.")
    operation = call.operation(
        "bulkInsert",
        {"selfLink": f"{world.root}/zones/{zone}", "id": _unknown_id()},
        scope=f"zones/{zone}",
        group=secrets.token_hex(16),
    )
    bulk = _Bulk(call, operation, properties, shape, names, minimum, call.fault())
    world.clock.after(world.delays.start, bulk.begin)
    return operation.resource


def _names(call: Call) -> list[str]:
    """The name of each VM."""
    count = int(call.body.get("count", 0))
    if not 1 <= count <= 5000:
        raise invalid_field("resource.count", count, "Must be 1 to 5000.")
    named = call.body.get("perInstanceProperties", {})
    if len(named) != count:
        raise invalid_field("resource.count", count, f"perInstanceProperties has {len(named)} names.")
    for name, properties in named.items():
        check_name("resource.perInstanceProperties.key", name)
        if properties:
            raise not_implemented(f"{', '.join(sorted(properties))} of perInstanceProperties")
    return list(named)


def _unknown_id() -> str:
    return str(secrets.randbits(62))
