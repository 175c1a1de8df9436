"""Resource policies of compact placement: https://cloud.google.com/compute/docs/instances/use-compact-placement-policies"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements, run_simple
from tests.standins.compute.catalogue import REGION_OF
from tests.standins.compute.errors import ApiError, invalid, not_found, not_implemented
from tests.standins.compute.resources.places import REGION_SCOPES
from tests.standins.compute.rules import check_name
from tests.standins.compute.state import Workers

# https://docs.cloud.google.com/ai-hypercomputer/docs/placement-policy-and-workload-policy
COMPACT = frozenset({"a2", "a3", "a4", "g2", "g4"})


def check_policies(world: Workers, properties: Mapping[str, Any], zone: str) -> None:
    """Raises ApiError, 400 or 404: VMs cannot be of these policies; the words are a guess."""
    for name in properties.get("resourcePolicies", ()):
        if "/" in name or name not in world.resource_policies[REGION_OF[zone]]:
            raise not_found(f"projects/{world.project}/regions/{REGION_OF[zone]}/resourcePolicies/{name}")
        family = properties.get("machineType", "").partition("-")[0]
        if family not in COMPACT:
            raise invalid(f"Machine family {family} does not support a compact placement policy.")


@implements("resourcePolicies.insert")
def insert_policy(call: Call) -> dict[str, Any]:
    world, body = call.world, call.body
    if again := world.operations.of_request(call.request):
        return again.resource
    name = body.get("name", "")
    check_name("resource.name", name)
    if body.get("groupPlacementPolicy") != {"collocation": "COLLOCATED"}:
        raise not_implemented("resource policies of another kind than COLLOCATED")
    if name in world.resource_policies[call.region]:
        path = call.url(f"regions/{call.region}/resourcePolicies/{name}")
        raise ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
    policy = {
        **world.base("resourcePolicy", f"regions/{call.region}/resourcePolicies", name),
        **body,
        "region": f"{world.root}/regions/{call.region}",
        "status": "READY",
    }
    operation = call.operation("insert", policy, scope=f"regions/{call.region}")
    fault = call.fault()
    if "operation_error" not in fault or fault.get("effect"):
        # Its name is taken from now on.
        world.resource_policies[call.region][name] = policy
    run_simple(call, operation, lambda: None, fault=fault)
    return operation.resource


@implements("resourcePolicies.get")
def get_policy(call: Call) -> dict[str, Any]:
    name = call.path["resourcePolicy"]
    found = call.world.resource_policies[call.region].get(name)
    if found is None:
        raise not_found(call.url(f"regions/{call.region}/resourcePolicies/{name}"))
    return found


@implements("resourcePolicies.delete")
def delete_policy(call: Call) -> dict[str, Any]:
    world, region, name = call.world, call.region, call.path["resourcePolicy"]
    if again := world.operations.of_request(call.request):
        return again.resource
    path = call.url(f"regions/{region}/resourcePolicies/{name}")
    policy = world.resource_policies[region].get(name)
    if policy is None:
        raise not_found(path)
    users = [vm.name for vm in world.all_vms() if policy["selfLink"] in vm.resource.get("resourcePolicies", ())]
    if users:
        text = f"The resource_policy resource '{path}' is already being used by '{users[0]}'"
        raise ApiError(400, "resourceInUseByAnotherResource", text)
    operation = call.operation("delete", policy, scope=f"regions/{region}")
    run_simple(call, operation, lambda: void(world, region, name), fault=call.fault())
    return operation.resource


def void(world: Workers, region: str, name: str) -> None:
    """It is gone."""
    world.resource_policies[region].pop(name, None)


@implements("resourcePolicies.aggregatedList")
def aggregate_policies(call: Call) -> dict[str, Any]:
    found = [(region, one) for region, there in call.world.resource_policies.items() for one in there.values()]
    return lists.aggregated(
        call.page("ResourcePolicy"),
        ((f"regions/{region}", one) for region, one in found),
        kind="compute#resourcePolicyAggregatedList",
        path=call.url("aggregated/resourcePolicies"),
        field="resourcePolicies",
        scopes=REGION_SCOPES,
        unreachable={},
    )
