"""Networks, subnetworks and addresses: there from the start, read only."""

from __future__ import annotations

from typing import Any

from tests.standins.compute.call import Call, implements
from tests.standins.compute.catalogue import REGION_SCOPES


@implements("subnetworks.aggregatedList")
def aggregate_subnetworks(call: Call) -> dict[str, Any]:
    return call.aggregated(
        "subnetworks",
        "Subnetwork",
        ((f"regions/{region}", one) for region, found in call.world.subnetworks.items() for one in found.values()),
        scopes=REGION_SCOPES,
    )
