"""Operations of zones, of regions, and global ones."""

from __future__ import annotations

from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements
from tests.standins.compute.catalogue import REGION_SCOPES, ZONE_SCOPES
from tests.standins.compute.errors import not_found
from tests.standins.compute.operations import Operation


def _scope(call: Call) -> str:
    if "zone" in call.path:
        return f"zones/{call.zone}"
    return f"regions/{call.region}" if "region" in call.path else "global"


def _find(call: Call) -> Operation:
    scope, name = _scope(call), call.path["operation"]
    with call.world.lock:
        operation = call.world.operations.find(scope, name)
    if operation is None:
        raise not_found(call.url(f"{scope}/operations/{name}"))
    return operation


@implements("zoneOperations.get", "regionOperations.get", "globalOperations.get")
def get_operation(call: Call) -> dict[str, Any]:
    return _find(call).resource


@implements("zoneOperations.wait", "regionOperations.wait", "globalOperations.wait", locked=False)
def wait_operation(call: Call) -> dict[str, Any]:
    operation = _find(call)
    # So long, Google says, and then answers with an operation that is not DONE.
    operation.done.wait(120)
    return operation.resource


@implements("zoneOperations.list", "regionOperations.list", "globalOperations.list")
def list_operations(call: Call) -> dict[str, Any]:
    scope = _scope(call)
    items = [operation.resource for operation in call.world.operations.of_scope(scope)]
    path = call.url(f"{scope}/operations")
    return lists.plain(call.page("Operation"), items, kind="compute#operationList", path=path)


@implements("globalOperations.aggregatedList")
def aggregate_operations(call: Call) -> dict[str, Any]:
    return call.aggregated(
        "operations",
        "Operation",
        ((operation.scope, operation.resource) for operation in call.world.operations.all()),
        scopes=("global", *REGION_SCOPES, *ZONE_SCOPES),
    )
