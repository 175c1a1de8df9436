"""Networks, subnetworks and addresses: there from the start, read only."""

from __future__ import annotations

from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements
from tests.standins.compute.errors import not_found
from tests.standins.compute.resources.places import REGION_SCOPES


@implements("networks.get")
def get_network(call: Call) -> dict[str, Any]:
    name = call.path["network"]
    if name not in call.world.networks:
        raise not_found(call.url(f"global/networks/{name}"))
    return call.world.networks[name]


@implements("networks.list")
def list_networks(call: Call) -> dict[str, Any]:
    items = call.world.networks.values()
    return lists.plain(call.page("Network"), items, kind="compute#networkList", path=call.url("global/networks"))


@implements("subnetworks.list")
def list_subnetworks(call: Call) -> dict[str, Any]:
    path = call.url(f"regions/{call.region}/subnetworks")
    items = call.world.subnetworks[call.region].values()
    return lists.plain(call.page("Subnetwork"), items, kind="compute#subnetworkList", path=path)


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
