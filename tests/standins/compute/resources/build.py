"""From an instance's properties to the resources that are stored: the instance and its disks."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.standins.compute.catalogue import REGION_OF
from tests.standins.compute.clock import timestamp
from tests.standins.compute.errors import invalid, invalid_field, not_found
from tests.standins.compute.lists import HOST
from tests.standins.compute.resources.firewalls import network_of
from tests.standins.compute.resources.places import default_account
from tests.standins.compute.rules import Shape, check_name, image_of
from tests.standins.compute.state import Vm, Workers


def fingerprint(value: Any) -> str:
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def interfaces_of(world: Workers, properties: Mapping[str, Any], zone: str) -> list[dict[str, Any]]:
    """The network interfaces, resolved.

    Raises:
        ApiError: 400 or 404; no such network, or one without a subnetwork here.
    """
    asked = properties.get("networkInterfaces") or [{}]
    if len(asked) != 1:
        raise invalid("This emulator's instances have one network interface.")
    interface = dict(asked[0])
    region = REGION_OF[zone]
    if "subnetwork" in interface:
        subnetwork = _subnetwork(world, interface["subnetwork"], region)
        if "network" in interface and network_of(world, interface["network"])["selfLink"] != subnetwork["network"]:
            raise invalid_field("resource.networkInterfaces[0].subnetwork", interface["subnetwork"], "Other network.")
    else:
        network = network_of(world, interface.get("network", "global/networks/default"))
        if not network["autoCreateSubnetworks"]:
            raise invalid_field(
                "resource.networkInterfaces[0].subnetwork", "", "Subnetwork should be specified for custom subnetmode."
            )
        subnetwork = world.subnetworks[region][network["name"]]
    if interface.get("accessConfigs"):
        first = interface["accessConfigs"][0]
        defaults = {"kind": "compute#accessConfig", "type": "ONE_TO_ONE_NAT", "networkTier": "PREMIUM"}
        interface["accessConfigs"] = [{**defaults, "name": "external-nat", **first}]
    interface |= {
        "kind": "compute#networkInterface",
        "name": "nic0",
        "network": subnetwork["network"],
        "subnetwork": subnetwork["selfLink"],
        "stackType": "IPV4_ONLY",
        "fingerprint": fingerprint(interface),
    }
    return [interface]


def _subnetwork(world: Workers, url: str, region: str) -> dict[str, Any]:
    match = re.fullmatch(
        r"(?:(?:https://(?:www|compute)\.googleapis\.com/compute/v1/)?projects/([^/]+)/)?regions/([^/]+)/subnetworks/([^/]+)",
        url,
    )
    if match is None:
        raise invalid_field("resource.networkInterfaces[0].subnetwork", url, "The URL is malformed.")
    if match[2] != region:
        raise invalid_field("resource.networkInterfaces[0].subnetwork", url, f"The region must be {region}.")
    if match[1] not in (None, world.project) or match[3] not in world.subnetworks[region]:
        raise not_found(f"projects/{match[1] or world.project}/regions/{region}/subnetworks/{match[3]}")
    return world.subnetworks[region][match[3]]


def build(
    world: Workers, properties: Mapping[str, Any], shape: Shape, *, zone: str, name: str
) -> tuple[Vm, list[dict[str, Any]]]:
    """A new instance and its disks. The properties have been checked."""
    resource = {
        **world.base("instance", f"zones/{zone}/instances", name),
        "zone": f"{world.root}/zones/{zone}",
        "status": "PROVISIONING",
        "machineType": f"{world.root}/zones/{zone}/machineTypes/{shape.machine.name}",
        "cpuPlatform": "Unknown CPU Platform",
        "canIpForward": properties.get("canIpForward", False),
        "deletionProtection": properties.get("deletionProtection", False),
        "startRestricted": False,
        "scheduling": _scheduling(properties.get("scheduling", {}), shape),
        "networkInterfaces": interfaces_of(world, properties, zone),
        "tags": {**properties.get("tags", {}), "fingerprint": fingerprint(properties.get("tags", {}))},
        "metadata": {
            "kind": "compute#metadata",
            **properties.get("metadata", {}),
            "fingerprint": fingerprint(properties.get("metadata", {})),
        },
        "labelFingerprint": fingerprint(properties.get("labels", {})),
        "fingerprint": fingerprint(name),
        "shieldedInstanceConfig": {
            "enableSecureBoot": False,
            "enableVtpm": True,
            "enableIntegrityMonitoring": True,
            **properties.get("shieldedInstanceConfig", {}),
        },
    }
    kept = ("labels", "description", "reservationAffinity", "minCpuPlatform", "networkPerformanceConfig")
    for field in (*kept, "keyRevocationActionType"):
        if field in properties:
            resource[field] = properties[field]
    if shape.gpus:
        gpu, count = shape.gpus
        url = f"{world.root}/zones/{zone}/acceleratorTypes/{gpu}"
        resource["guestAccelerators"] = [{"acceleratorType": url, "acceleratorCount": count}]
    if accounts := properties.get("serviceAccounts"):
        email = accounts[0].get("email", "default")
        resource["serviceAccounts"] = [
            {**accounts[0], "email": default_account(world.number) if email == "default" else email}
        ]
    disks = []
    attached = []
    for index, asked in enumerate(properties["disks"]):
        disk = _disk(world, asked, shape.disks[index], zone=zone, name=name if index == 0 else f"{name}-{index}")
        disk["users"] = [resource["selfLink"]]
        disks.append(disk)
        attached.append(_attached(asked, disk, index))
    resource["disks"] = attached
    return Vm(zone=zone, resource=resource, shape=shape), disks


def _scheduling(asked: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
    return {
        "onHostMaintenance": "TERMINATE" if shape.spot else "MIGRATE",
        "automaticRestart": not shape.spot,
        "preemptible": shape.spot,
        "provisioningModel": "STANDARD",
        **asked,
    }


def _disk(world: Workers, asked: Mapping[str, Any], kind: tuple[str, int], *, zone: str, name: str) -> dict[str, Any]:
    start = asked.get("initializeParams", {})
    name = start.get("diskName", name)
    check_name("resource.disks.initializeParams.diskName", name)
    disk: dict[str, Any] = {
        **world.base("disk", f"zones/{zone}/disks", name),
        "zone": f"{world.root}/zones/{zone}",
        "status": "READY",
        "sizeGb": str(kind[1]),
        "type": f"{world.root}/zones/{zone}/diskTypes/{kind[0]}",
        "labelFingerprint": fingerprint(start.get("labels", {})),
        "lastAttachTimestamp": timestamp(),
        "physicalBlockSizeBytes": "4096",
    }
    if "labels" in start:
        disk["labels"] = start["labels"]
    if "sourceImage" in start:
        image = image_of(start["sourceImage"])
        disk["sourceImage"] = f"{HOST}/projects/{image.project}/global/images/{image.name}"
    return disk


def _attached(asked: Mapping[str, Any], disk: Mapping[str, Any], index: int) -> dict[str, Any]:
    return {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": asked.get("mode", "READ_WRITE"),
        "source": disk["selfLink"],
        "deviceName": asked.get("deviceName", f"persistent-disk-{index}"),
        "index": index,
        "boot": index == 0,
        "autoDelete": asked.get("autoDelete", False),
        "interface": asked.get("interface", "SCSI"),
        "diskSizeGb": disk["sizeGb"],
    }
