"""Resource policies of compact placement: https://cloud.google.com/compute/docs/instances/use-compact-placement-policies"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.standins.compute.call import Call, delete, implements, insert
from tests.standins.compute.catalogue import REGION_OF, REGION_SCOPES
from tests.standins.compute.errors import ApiError, invalid, not_found, not_implemented
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
    name = body.get("name", "")
    check_name("resource.name", name)
    if body.get("groupPlacementPolicy") != {"collocation": "COLLOCATED"}:
        raise not_implemented("resource policies of another kind than COLLOCATED")
    policy = {
        **world.base("resourcePolicy", f"regions/{call.region}/resourcePolicies", name),
        **body,
        "region": f"{world.root}/regions/{call.region}",
        "status": "READY",
    }
    return insert(call, policy, world.resource_policies[call.region], scope=f"regions/{call.region}")


def _policy(call: Call) -> dict[str, Any]:
    name = call.path["resourcePolicy"]
    found = call.world.resource_policies[call.region].get(name)
    if found is None:
        raise not_found(call.url(f"regions/{call.region}/resourcePolicies/{name}"))
    return found


@implements("resourcePolicies.get")
def get_policy(call: Call) -> dict[str, Any]:
    return _policy(call)


@implements("resourcePolicies.delete")
def delete_policy(call: Call) -> dict[str, Any]:
    world, region, name = call.world, call.region, call.path["resourcePolicy"]
    policy = _policy(call)
    users = [vm.name for vm in world.all_vms() if policy["selfLink"] in vm.resource.get("resourcePolicies", ())]
    if users:
        path = call.url(f"regions/{region}/resourcePolicies/{name}")
        text = f"The resource_policy resource '{path}' is already being used by '{users[0]}'"
        raise ApiError(400, "resourceInUseByAnotherResource", text)
    return delete(call, policy, world.resource_policies[region], scope=f"regions/{region}")


@implements("resourcePolicies.aggregatedList")
def aggregate_policies(call: Call) -> dict[str, Any]:
    policies = call.world.resource_policies
    return call.aggregated(
        "resourcePolicies",
        "ResourcePolicy",
        ((f"regions/{region}", one) for region, there in policies.items() for one in there.values()),
        scopes=REGION_SCOPES,
    )
