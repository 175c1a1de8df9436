"""Projects, regions, zones and images: nothing that changes, but for quotas."""

from __future__ import annotations

import functools
from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements
from tests.standins.compute.catalogue import IMAGES, REGION_OF, ZONES, Image
from tests.standins.compute.errors import not_found

BORN = "1969-12-31T16:00:00.000-08:00"  # as the API has it for what Google made


def _number(text: str) -> str:
    """A number that's always the same."""
    return str(1000 + functools.reduce(lambda sum_, char: (sum_ * 131 + ord(char)) % (1 << 40), text, 7))


@implements("projects.get")
def get_project(call: Call) -> dict[str, Any]:
    world = call.world
    return {
        "kind": "compute#project",
        "id": world.number,
        "name": world.project,
        "creationTimestamp": BORN,
        "selfLink": world.root,
        "defaultServiceAccount": default_account(world.number),
        "defaultNetworkTier": "PREMIUM",
        "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "AAAAAAAAAAA="},
        "quotas": world.quotas.plain(None, world.used()),
    }


def default_account(number: str) -> str:
    return f"{number}-compute@developer.gserviceaccount.com"


def _region(call: Call, name: str) -> dict[str, Any]:
    world = call.world
    region: dict[str, Any] = {
        "kind": "compute#region",
        "id": _number(name),
        "creationTimestamp": BORN,
        "name": name,
        "description": name,
        "status": "UP",
        "zones": [f"{world.root}/zones/{zone}" for zone in ZONES[name]],
        "selfLink": f"{world.root}/regions/{name}",
        "supportsPzs": False,
    }
    region["quotas"] = world.quotas.plain(name, world.used())
    return region


@implements("regions.list")
def list_regions(call: Call) -> dict[str, Any]:
    items = [_region(call, name) for name in ZONES]
    return lists.plain(call.page("Region"), items, kind="compute#regionList", path=call.url("regions"))


def _zone(call: Call, name: str) -> dict[str, Any]:
    root = call.world.root
    return {
        "kind": "compute#zone",
        "id": _number(name),
        "creationTimestamp": BORN,
        "name": name,
        "description": name,
        "status": "DOWN" if name in call.world.unreachable else "UP",
        "region": f"{root}/regions/{REGION_OF[name]}",
        "selfLink": f"{root}/zones/{name}",
        "supportsPzs": False,
    }


@implements("zones.get")
def get_zone(call: Call) -> dict[str, Any]:
    if call.path["zone"] not in REGION_OF:
        raise not_found(call.url(f"zones/{call.path['zone']}"))
    return _zone(call, call.path["zone"])


@implements("zones.list")
def list_zones(call: Call) -> dict[str, Any]:
    items = [_zone(call, name) for name in REGION_OF]
    return lists.plain(call.page("Zone"), items, kind="compute#zoneList", path=call.url("zones"))


@implements("images.getFromFamily")
def get_image_from_family(call: Call) -> dict[str, Any]:
    project, family = call.path["project"], call.path["family"]
    for image in IMAGES:
        if (image.project, image.family) == (project, family):
            return _image(image)
    raise not_found(f"projects/{project}/global/images/family/{family}")


def _image(image: Image) -> dict[str, Any]:
    return {
        "kind": "compute#image",
        "id": _number(image.name),
        "creationTimestamp": "2026-10-20T09:00:00.000-07:00",
        "name": image.name,
        "family": image.family,
        "status": "READY",
        "sourceType": "RAW",
        "diskSizeGb": str(image.size_gb),
        "archiveSizeBytes": str(image.size_gb << 27),
        "architecture": "X86_64",
        "guestOsFeatures": [{"type": "GVNIC"}, {"type": "UEFI_COMPATIBLE"}, {"type": "VIRTIO_SCSI_MULTIQUEUE"}],
        "selfLink": f"{lists.HOST}/projects/{image.project}/global/images/{image.name}",
    }
