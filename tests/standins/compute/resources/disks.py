"""Disks: made with their instances, deleted with them or on their own."""

from __future__ import annotations

from typing import Any

from tests.standins.compute.call import Call, delete, implements
from tests.standins.compute.errors import ApiError, not_found
from tests.standins.compute.resources.labels import set_labels


@implements("disks.setLabels")
def set_disk_labels(call: Call) -> dict[str, Any]:
    return set_labels(call, _disk(call, "resource"), f"zones/{call.zone}")


def _disk(call: Call, parameter: str = "disk") -> dict[str, Any]:
    name = call.path[parameter]
    found = call.world.disks[call.zone]
    if name not in found:
        raise not_found(call.url(f"zones/{call.zone}/disks/{name}"))
    return found[name]


@implements("disks.get")
def get_disk(call: Call) -> dict[str, Any]:
    return _disk(call)


@implements("disks.aggregatedList")
def aggregate_disks(call: Call) -> dict[str, Any]:
    return call.aggregated(
        "disks",
        "Disk",
        ((f"zones/{zone}", disk) for zone, disks in call.world.disks.items() for disk in disks.values()),
    )


@implements("disks.delete")
def delete_disk(call: Call) -> dict[str, Any]:
    world, zone = call.world, call.zone
    disk = _disk(call)
    if disk.get("users"):
        user = disk["users"][0].partition("/compute/v1/")[2]
        raise ApiError(
            400,
            "resourceInUseByAnotherResource",
            f"The disk resource '{call.url(f'zones/{zone}/disks/' + disk['name'])}' is already being used by '{user}'",
        )
    return delete(call, disk, world.disks[zone], scope=f"zones/{zone}")
