"""Instances: what is said of them, and their end."""

from __future__ import annotations

from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements, run_simple
from tests.standins.compute.errors import ApiError, invalid, invalid_field, not_implemented
from tests.standins.compute.resources.labels import set_labels


@implements("instances.get")
def get_instance(call: Call) -> dict[str, Any]:
    return call.world.vm(call.zone, call.path["instance"]).resource


@implements("instances.list")
def list_instances(call: Call) -> dict[str, Any]:
    path = call.url(f"zones/{call.zone}/instances")
    items = [vm.resource for vm in call.world.listed_vms() if vm.zone == call.zone]
    return lists.plain(call.page("Instance"), items, kind="compute#instanceList", path=path)


@implements("instances.aggregatedList")
def aggregate_instances(call: Call) -> dict[str, Any]:
    return call.aggregated(
        "instances", "Instance", ((f"zones/{vm.zone}", vm.resource) for vm in call.world.listed_vms())
    )


@implements("instances.delete")
def delete_instance(call: Call) -> dict[str, Any]:
    world = call.world
    vm = world.vm(call.zone, call.path["instance"])
    if vm.resource["deletionProtection"]:
        raise invalid(
            f"Invalid resource usage: 'Resource cannot be deleted if it's protected against deletion. {vm.name}'."
        )
    operation = call.operation("delete", vm.resource, scope=f"zones/{vm.zone}")
    fault = call.fault()
    if "operation_error" in fault:
        run_simple(call, operation, lambda: None, fault=fault)
    else:
        call.lifecycle.delete(vm, operation, slow=fault.get("slow", 0.0))
    return operation.resource


@implements("instances.simulateMaintenanceEvent")
def simulate_maintenance_event(call: Call) -> dict[str, Any]:
    """Google's way to test a preemption: a Spot VM is taken away, others fare as their onHostMaintenance says.

    https://cloud.google.com/compute/docs/instances/simulating-host-maintenance
    """
    world = call.world
    vm = world.vm(call.zone, call.path["instance"])
    scheduling = vm.resource["scheduling"]
    terminates = scheduling["onHostMaintenance"] == "TERMINATE"
    if vm.status != "RUNNING":
        raise ApiError(400, "resourceNotReady", f"The resource '{vm.resource['selfLink']}' is not ready")
    if terminates and scheduling["automaticRestart"]:
        raise not_implemented("a VM that starts again after its host's maintenance")
    operation = call.operation("simulateMaintenanceEvent", vm.resource, scope=f"zones/{vm.zone}")

    def effect() -> None:
        if vm.shape.spot:
            call.lifecycle.preempt(vm)
        elif terminates:
            call.lifecycle.terminate(vm)

    run_simple(call, operation, effect, fault=call.fault())
    return operation.resource


@implements("instances.setLabels")
def set_instance_labels(call: Call) -> dict[str, Any]:
    resource = call.world.vm(call.zone, call.path["instance"]).resource
    return set_labels(call, resource, f"zones/{call.zone}")


@implements("instances.setDiskAutoDelete")
def set_disk_auto_delete(call: Call) -> dict[str, Any]:
    world, wanted = call.world, call.query["deviceName"]
    vm = world.vm(call.zone, call.path["instance"])
    if wanted not in [disk["deviceName"] for disk in vm.resource["disks"]]:
        raise invalid_field("deviceName", wanted, "No such device.")
    operation = call.operation("setDiskAutoDelete", vm.resource, scope=f"zones/{vm.zone}")

    def effect() -> None:
        changed = {"autoDelete": call.query["autoDelete"]}
        disks = vm.resource["disks"]
        vm.update(disks=[{**disk, **(changed if disk["deviceName"] == wanted else {})} for disk in disks])

    run_simple(call, operation, effect, fault=call.fault())
    return operation.resource


@implements("instances.getGuestAttributes")
def get_guest_attributes(call: Call) -> dict[str, Any]:
    vm = call.world.vm(call.zone, call.path["instance"])
    call.world.policies.check_guest_attributes(call.world.number)
    query = call.query.get("queryPath")
    if query is None or "variableKey" in call.query:
        raise not_implemented("getGuestAttributes without queryPath, or with variableKey")
    namespace, _, name = query.partition("/")
    found = [
        (space, attribute, value)
        for (space, attribute), value in sorted(vm.guest.items())
        if namespace in ("", space) and name in ("", attribute)
    ]
    if not found:
        raise ApiError(404, "notFound", f"The resource '{query}' of type 'Guest Attribute' was not found.")
    items = [{"namespace": space, "key": attribute, "value": value} for space, attribute, value in found]
    return {
        "kind": "compute#guestAttributes",
        "selfLink": f"{vm.resource['selfLink']}/getGuestAttributes/",
        "queryPath": query,
        "queryValue": {"items": items},
    }


@implements("instances.getSerialPortOutput")
def get_serial_port_output(call: Call) -> dict[str, Any]:
    vm = call.world.vm(call.zone, call.path["instance"])
    if call.query.get("port", 1) != 1:
        raise not_implemented("other serial ports than the first")
    data, first = bytes(vm.serial), vm.serial_start
    end = first + len(data)
    start = call.query.get("start", 0)
    # A negative one counts from the end.
    start = min(max(first, end + start if start < 0 else start), end)
    return {
        "kind": "compute#serialPortOutput",
        "selfLink": f"{vm.resource['selfLink']}/serialPort",
        "contents": data[start - first :].decode(errors="replace"),
        "start": str(start),
        "next": str(end),
    }
