"""Networks, subnetworks and addresses: there from the start, read only."""

from __future__ import annotations

from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements
from tests.standins.compute.resources.places import REGION_SCOPES


@implements("subnetworks.aggregatedList")
def aggregate_subnetworks(call: Call) -> dict[str, Any]:
    return lists.aggregated(
        call.page("Subnetwork"),
        ((f"regions/{region}", one) for region, found in call.world.subnetworks.items() for one in found.values()),
        kind="compute#subnetworkAggregatedList",
        path=call.url("aggregated/subnetworks"),
        field="subnetworks",
        scopes=REGION_SCOPES,
        unreachable={},
    )
