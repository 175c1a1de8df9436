"""Managed instance groups of one zone, and their resize requests."""

from __future__ import annotations

from typing import Any

from tests.standins.compute import groups, lists
from tests.standins.compute.call import Call, implements, insert, run_simple
from tests.standins.compute.errors import ApiError, invalid, invalid_field, not_found, not_implemented
from tests.standins.compute.groups import Group, ResizeRequest
from tests.standins.compute.resources.build import fingerprint, interfaces_of
from tests.standins.compute.resources.templates import template_of
from tests.standins.compute.rules import check_name, seconds_of, shape_of

_KNOWN = {"name", "description", "instanceTemplate", "targetSize", "instanceLifecyclePolicy", "baseInstanceName"}


def _group(call: Call) -> Group:
    name = call.path["instanceGroupManager"]
    found = call.world.groups[call.zone].get(name)
    if found is None:
        raise not_found(call.url(f"zones/{call.zone}/instanceGroupManagers/{name}"))
    return found


def _request(call: Call) -> tuple[Group, ResizeRequest]:
    group, name = _group(call), call.path["resizeRequest"]
    if name not in group.requests:
        raise not_found(call.url(f"zones/{call.zone}/instanceGroupManagers/{group.name}/resizeRequests/{name}"))
    return group, group.requests[name]


@implements("instanceGroupManagers.get")
def get_group(call: Call) -> dict[str, Any]:
    return _group(call).resource


@implements("instanceGroupManagers.aggregatedList")
def aggregate_groups(call: Call) -> dict[str, Any]:
    return call.aggregated(
        "instanceGroupManagers",
        "InstanceGroupManager",
        ((f"zones/{group.zone}", group.resource) for group in call.world.all_groups()),
    )


@implements("instanceGroupManagers.insert")
def insert_group(call: Call) -> dict[str, Any]:
    world, body, zone = call.world, call.body, call.zone
    if unsupported := set(body) - _KNOWN:
        raise not_implemented(f"{', '.join(sorted(unsupported))} of managed instance groups")
    name = body.get("name", "")
    check_name("resource.name", name)
    if body.get("targetSize") != 0:
        raise not_implemented("a managed instance group that makes VMs without a resize request")
    template = template_of(world, body.get("instanceTemplate", ""))
    properties = template["properties"]
    shape = shape_of(properties, zone=zone, in_group=True)
    interfaces_of(world, properties, zone)
    resource = {
        **world.base("instanceGroupManager", f"zones/{zone}/instanceGroupManagers", name),
        "zone": f"{world.root}/zones/{zone}",
        "baseInstanceName": name[:58],
        "instanceGroup": f"{world.root}/zones/{zone}/instanceGroups/{name}",
        "fingerprint": fingerprint(name),
        **body,
        "instanceTemplate": template["selfLink"],
    }
    group = Group(zone=zone, resource=resource, properties=properties, shape=shape)
    return insert(call, resource, world.groups[zone], scope=f"zones/{zone}", kept=group)


@implements("instanceGroupManagers.delete")
def delete_group(call: Call) -> dict[str, Any]:
    group = _group(call)
    if group.deleting is not None:
        return group.deleting.resource
    operation = call.operation("delete", group.resource, scope=f"zones/{group.zone}")
    fault = call.fault()
    if "operation_error" in fault:
        run_simple(call, operation, lambda: None, fault=fault)
    else:
        groups.delete(call.lifecycle, group, operation, slow=fault.get("slow", 0.0))
    return operation.resource


@implements("instanceGroupManagerResizeRequests.get")
def get_resize_request(call: Call) -> dict[str, Any]:
    return _request(call)[1].resource


@implements("instanceGroupManagerResizeRequests.list")
def list_resize_requests(call: Call) -> dict[str, Any]:
    group = _group(call)
    return lists.plain(
        call.page("InstanceGroupManagerResizeRequest"),
        [request.resource for request in group.requests.values()],
        kind="compute#instanceGroupManagerResizeRequestList",
        path=call.url(f"zones/{group.zone}/instanceGroupManagers/{group.name}/resizeRequests"),
    )


@implements("instanceGroupManagerResizeRequests.insert")
def insert_resize_request(call: Call) -> dict[str, Any]:
    """ACCEPTED as soon as the operation is over, and granted then; the fault plan's `queue` has it wait for a test."""
    world, body, zone = call.world, call.body, call.zone
    group = _group(call)
    name, names = body.get("name", ""), _names(call, group)
    path = f"zones/{zone}/instanceGroupManagers/{group.name}/resizeRequests"
    if name in group.requests:
        raise ApiError(409, "alreadyExists", f"The resource '{call.url(f'{path}/{name}')}' already exists")
    if group.deleting is not None:
        raise ApiError(400, "resourceNotReady", f"The resource '{group.resource['selfLink']}' is not ready")
    resource = {
        **world.base("instanceGroupManagerResizeRequest", path, name),
        "zone": f"{world.root}/zones/{zone}",
        **body,
        "state": "CREATING",
    }
    request = ResizeRequest(resource=resource, names=names)
    operation = call.operation("insert", group.resource, scope=f"zones/{zone}")
    fault = call.fault()
    if taken := [each for each in names if each in world.vms[zone] or each in world.disks[zone]]:
        text = f"The resource 'projects/{world.project}/zones/{zone}/instances/{taken[0]}' already exists"
        fault = {"operation_error": {"code": "RESOURCE_ALREADY_EXISTS", "message": text, "http": 409}}
    if "operation_error" not in fault or fault.get("effect"):
        group.requests[name] = request

    def accepted() -> None:
        groups.accept(call.lifecycle, group, request)
        if "stockout" in fault:
            text = f"The zone 'projects/{world.project}/zones/{zone}' does not have enough resources available."
            error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": text}
            groups.fail(call.lifecycle, group, request, [error])
        elif "queue" not in fault:
            groups.grant(call.lifecycle, group, request)

    run_simple(call, operation, accepted, fault=fault)
    return operation.resource


def _names(call: Call, group: Group) -> list[str]:
    """The VMs that a request names, which is well-formed."""
    body = call.body
    check_name("resource.name", body.get("name", ""))
    if ("resizeBy" in body) == ("instances" in body):
        raise invalid("Exactly one of 'resource.resizeBy' and 'resource.instances' must be set.")
    if "resizeBy" in body:
        raise not_implemented("resizeBy of a resize request")
    names = [str(each.get("name", "")) for each in body["instances"]]
    for each in names:
        check_name("resource.instances.name", each)
    if not names or len(set(names)) < len(names):
        raise invalid_field("resource.instances", names, "Each instance needs a name of its own.")
    duration = body.get("requestedRunDuration")
    if duration is not None and not 600 <= seconds_of(duration) <= 7 * 86400:
        raise invalid_field("resource.requestedRunDuration", seconds_of(duration), "Must be 10 minutes to 7 days.")
    scheduling = group.properties.get("scheduling", {})
    if scheduling.get("provisioningModel") != "FLEX_START":
        raise not_implemented("a resize request of a group whose template is not FLEX_START")
    return names


@implements("instanceGroupManagerResizeRequests.cancel")
def cancel_resize_request(call: Call) -> dict[str, Any]:
    group, request = _request(call)
    if request.resource["state"] != "ACCEPTED":
        # https://github.com/hashicorp/terraform-provider-google/issues/25218
        raise invalid("Cancelling resize request that has reached a final state is not possible.")
    operation = call.operation("cancel", group.resource, scope=f"zones/{group.zone}")
    run_simple(call, operation, lambda: groups.cancel(call.lifecycle, group, request), fault=call.fault())
    return operation.resource
