"""Projects, regions, zones, machine types, GPUs and images: nothing that changes, but for quotas."""

from __future__ import annotations

import functools
from typing import Any

from tests.standins.compute import lists
from tests.standins.compute.call import Call, implements
from tests.standins.compute.catalogue import ACCELERATORS, IMAGES, MACHINES, REGION_OF, ZONES, Image, Machine, machine
from tests.standins.compute.errors import not_found

BORN = "1969-12-31T16:00:00.000-08:00"  # as the API has it for what Google made
ZONE_SCOPES = tuple(f"zones/{zone}" for zone in sorted(REGION_OF))
REGION_SCOPES = tuple(f"regions/{region}" for region in sorted(ZONES))


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


@implements("regions.get")
def get_region(call: Call) -> dict[str, Any]:
    if call.path["region"] not in ZONES:
        raise not_found(call.url(f"regions/{call.path['region']}"))
    return _region(call, call.path["region"])


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


@functools.cache
def _machine_type(root: str, zone: str, kind: Machine) -> dict[str, Any]:
    result: dict[str, Any] = {
        "kind": "compute#machineType",
        "id": _number(kind.name),
        "creationTimestamp": BORN,
        "name": kind.name,
        "description": f"{kind.cpus} vCPUs, {kind.memory_mb / 1024:g} GB RAM",
        "guestCpus": kind.cpus,
        "memoryMb": kind.memory_mb,
        "imageSpaceGb": 0,
        "maximumPersistentDisks": 16 if kind.shared else 128,
        "maximumPersistentDisksSizeGb": "3072" if kind.shared else "263168",
        "zone": zone,
        "selfLink": f"{root}/zones/{zone}/machineTypes/{kind.name}",
        "isSharedCpu": kind.shared,
        "architecture": "X86_64",
    }
    if kind.gpus:
        result["accelerators"] = [{"guestAcceleratorType": kind.gpus[0], "guestAcceleratorCount": kind.gpus[1]}]
    return result


def _machine_types(root: str, zone: str) -> list[dict[str, Any]]:
    return [_machine_type(root, zone, kind) for kind in MACHINES.values() if zone in kind.zones]


@implements("machineTypes.get")
def get_machine_type(call: Call) -> dict[str, Any]:
    name = call.path["machineType"]
    kind = machine(name)
    if kind is None or call.zone not in kind.zones:
        raise not_found(call.url(f"zones/{call.zone}/machineTypes/{name}"))
    return _machine_type(call.world.root, call.zone, kind)


@implements("machineTypes.list")
def list_machine_types(call: Call) -> dict[str, Any]:
    path = call.url(f"zones/{call.zone}/machineTypes")
    items = _machine_types(call.world.root, call.zone)
    return lists.plain(call.page("MachineType"), items, kind="compute#machineTypeList", path=path)


@implements("machineTypes.aggregatedList")
def aggregate_machine_types(call: Call) -> dict[str, Any]:
    return lists.aggregated(
        call.page("MachineType"),
        ((f"zones/{zone}", item) for zone in REGION_OF for item in _machine_types(call.world.root, zone)),
        kind="compute#machineTypeAggregatedList",
        path=call.url("aggregated/machineTypes"),
        field="machineTypes",
        scopes=ZONE_SCOPES,
        unreachable=unreachable_zones(call),
    )


@functools.cache
def _accelerator_type(root: str, zone: str, name: str) -> dict[str, Any]:
    one = ACCELERATORS[name]
    result: dict[str, Any] = {
        "kind": "compute#acceleratorType",
        "id": _number(one.name),
        "creationTimestamp": BORN,
        "name": one.name,
        "description": one.description,
        "zone": f"{root}/zones/{zone}",
        "selfLink": f"{root}/zones/{zone}/acceleratorTypes/{one.name}",
        "maximumCardsPerInstance": one.most,
    }
    if one.end:
        result["deprecated"] = {"state": "OBSOLETE" if one.gone else "DEPRECATED", "obsolete": one.end}
    return result


def _accelerator_types(root: str, zone: str) -> list[dict[str, Any]]:
    return [_accelerator_type(root, zone, name) for name, one in ACCELERATORS.items() if zone in one.zones]


@implements("acceleratorTypes.get")
def get_accelerator_type(call: Call) -> dict[str, Any]:
    name = call.path["acceleratorType"]
    for item in _accelerator_types(call.world.root, call.zone):
        if item["name"] == name:
            return item
    raise not_found(call.url(f"zones/{call.zone}/acceleratorTypes/{name}"))


@implements("acceleratorTypes.list")
def list_accelerator_types(call: Call) -> dict[str, Any]:
    path = call.url(f"zones/{call.zone}/acceleratorTypes")
    items = _accelerator_types(call.world.root, call.zone)
    return lists.plain(call.page("AcceleratorType"), items, kind="compute#acceleratorTypeList", path=path)


@implements("acceleratorTypes.aggregatedList")
def aggregate_accelerator_types(call: Call) -> dict[str, Any]:
    return lists.aggregated(
        call.page("AcceleratorType"),
        ((f"zones/{zone}", item) for zone in REGION_OF for item in _accelerator_types(call.world.root, zone)),
        kind="compute#acceleratorTypeAggregatedList",
        path=call.url("aggregated/acceleratorTypes"),
        field="acceleratorTypes",
        scopes=ZONE_SCOPES,
        unreachable=unreachable_zones(call),
    )


def unreachable_zones(call: Call) -> dict[str, frozenset[str]]:
    return {f"zones/{zone}": where for zone, where in call.world.unreachable.items()}


@implements("images.getFromFamily")
def get_image_from_family(call: Call) -> dict[str, Any]:
    project, family = call.path["project"], call.path["family"]
    for image in IMAGES:
        if (image.project, image.family) == (project, family):
            return _image(image)
    raise not_found(f"projects/{project}/global/images/family/{family}")


@implements("images.get")
def get_image(call: Call) -> dict[str, Any]:
    project, name = call.path["project"], call.path["image"]
    for image in IMAGES:
        if (image.project, image.name) == (project, name):
            return _image(image)
    raise not_found(f"projects/{project}/global/images/{name}")


@implements("images.list")
def list_images(call: Call) -> dict[str, Any]:
    """A project's own: public images are in lists of the projects that publish them."""
    project = call.path["project"]
    items = [_image(image) for image in IMAGES if image.project == project]
    return lists.plain(call.page("Image"), items, kind="compute#imageList", path=f"projects/{project}/global/images")


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
