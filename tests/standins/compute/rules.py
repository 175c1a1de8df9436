"""What Compute Engine demands of a new instance beyond the schema.

Sources of the limits: the descriptions in the discovery document; https://cloud.google.com/compute/docs/gpus and
https://cloud.google.com/compute/docs/instances/limit-vm-runtime.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.standins.compute.catalogue import ACCELERATORS, DISK_TYPES, IMAGES, Image, Machine, machine
from tests.standins.compute.errors import ApiError, invalid, invalid_field, not_found

NAME = r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_METADATA_KEY = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What an instance is made of, as far as quotas and prices care."""

    machine: Machine
    gpus: tuple[str, int] | None
    spot: bool
    flex: bool
    reserved: bool
    """Of a reservation, which has taken its quota."""
    external: bool
    disks: tuple[tuple[str, int], ...]
    """(type, GB) of each persistent one."""


def check_name(field: str, name: str) -> None:
    if not re.fullmatch(NAME, name):
        raise invalid_field(field, name, f"Must be a match of regex '(?:{NAME})'")


def check_labels(field: str, labels: Mapping[str, str]) -> None:
    if len(labels) > 64:
        raise invalid_field(field, len(labels), "At most 64 labels are allowed.")
    for key, value in labels.items():
        if not _LABEL_KEY.fullmatch(key):
            raise invalid_field(f"{field}.key", key, "Label keys must match '[a-z][a-z0-9_-]{0,62}'.")
        if not _LABEL_VALUE.fullmatch(value):
            raise invalid_field(f"{field}.value", value, "Label values must match '[a-z0-9_-]{0,63}'.")


def check_metadata(metadata: Mapping[str, Any]) -> None:
    total = 0
    seen = set()
    for item in metadata.get("items", []):
        key, value = item.get("key"), item.get("value")
        if key is None or value is None:
            raise invalid("Metadata items need a key and a value.")
        if not _METADATA_KEY.fullmatch(key):
            raise invalid_field("resource.metadata.items.key", key, "Must match '[a-zA-Z0-9-_]{1,128}'.")
        if key in seen:
            raise invalid_field("resource.metadata.items.key", key, "Metadata has duplicate keys.")
        seen.add(key)
        size = len(value.encode())
        if size > 256 << 10:
            raise invalid_field("resource.metadata.items.value", key, "Value is too large: maximum size 262144.")
        total += len(key) + size
    if total > 512 << 10:
        raise invalid_field("resource.metadata", total, "Metadata size is too large: maximum size 524288.")


def shape_of(properties: Mapping[str, Any], *, zone: str, in_group: bool = False) -> Shape:
    """Check an instance's properties as a whole, types given by bare names.

    Args:
        in_group: of a managed instance group.

    Raises:
        ApiError: 400 or 404.
    """
    name = properties.get("machineType", "")
    found = machine(name)
    if found is None or zone not in found.zones:
        raise invalid_field(
            "resource.machineType", name, f"Machine type with name '{name}' does not exist in zone '{zone}'."
        )
    gpus = _gpus(properties, found, zone)
    check_labels("resource.labels", properties.get("labels", {}))
    check_metadata(properties.get("metadata", {}))
    scheduling = properties.get("scheduling", {})
    _check_scheduling(scheduling, gpus=gpus is not None)
    if scheduling.get("provisioningModel") == "FLEX_START":
        _check_flex_start(properties, found, in_group=in_group)
    if not found.on_demand and scheduling.get("provisioningModel", "STANDARD") == "STANDARD":
        raise invalid(f"Machine type '{name}' can only be created with the provisioning model SPOT or FLEX_START.")
    for tag in properties.get("tags", {}).get("items", []):
        check_name("resource.tags.items", tag)
    for account in properties.get("serviceAccounts", []):
        if not re.fullmatch(r"default|[^@\s]+@[^@\s]+", account.get("email", "default")):
            raise invalid_field("resource.serviceAccounts.email", account.get("email"), "Not a service account.")
    if len(properties.get("serviceAccounts", [])) > 1:
        raise invalid("Only one service account per VM is supported.")
    return Shape(
        machine=found,
        gpus=gpus,
        spot=scheduling.get("provisioningModel") == "SPOT",
        flex=scheduling.get("provisioningModel") == "FLEX_START",
        reserved=properties.get("reservationAffinity", {}).get("consumeReservationType") == "SPECIFIC_RESERVATION",
        external=any(one.get("accessConfigs") for one in properties.get("networkInterfaces", [])),
        disks=tuple(_check_disks(properties.get("disks", []), found)),
    )


def _gpus(properties: Mapping[str, Any], found: Machine, zone: str) -> tuple[str, int] | None:
    asked = properties.get("guestAccelerators", [])
    if not asked:
        return found.gpus
    if found.gpus:
        raise invalid(f"Machine type '{found.name}' comes with its GPUs: guestAccelerators must not be set.")
    if len(asked) != 1:
        raise invalid("Only one accelerator type per instance is supported.")
    name, count = asked[0].get("acceleratorType", ""), asked[0].get("acceleratorCount", 0)
    accelerator = ACCELERATORS.get(name)
    if accelerator is None or zone not in accelerator.zones or accelerator.gone:
        raise not_found(f"zones/{zone}/acceleratorTypes/{name}")
    if found.family != "n1" or found.shared or not accelerator.n1:
        raise invalid(f"[{found.name}, {name}] features are not compatible for creating instance.")
    if count not in accelerator.n1:
        raise invalid_field(
            "resource.guestAccelerators[0].acceleratorCount", count, f"Allowed: {sorted(accelerator.n1)}."
        )
    cpus, gigabytes = accelerator.n1[count]
    if found.cpus > cpus or found.memory_mb > gigabytes * 1024:
        raise invalid(
            f"The number of guest CPUs or the memory of '{found.name}' is too large for {count} {name}: "
            f"at most {cpus} vCPUs and {gigabytes} GB."
        )
    return name, count


def _check_scheduling(scheduling: Mapping[str, Any], *, gpus: bool) -> None:
    model = scheduling.get("provisioningModel", "STANDARD")
    maintenance = scheduling.get("onHostMaintenance", "TERMINATE" if model == "SPOT" else "MIGRATE")
    if model not in ("STANDARD", "SPOT", "FLEX_START", "RESERVATION_BOUND"):
        raise ApiError(501, "notImplemented", f"this emulator has no provisioning model {model}")
    if gpus and maintenance != "TERMINATE":
        raise invalid("Instances with guest accelerators do not support live migration.")
    if model == "SPOT":
        if maintenance != "TERMINATE":
            raise invalid("Scheduling must have preemptible be false when OnHostMaintenance isn't TERMINATE.")
        if scheduling.get("automaticRestart"):
            raise invalid("Scheduling must have preemptible be false when AutomaticRestart is true.")
    if scheduling.get("preemptible", model == "SPOT") != (model == "SPOT"):
        raise invalid("scheduling.preemptible contradicts scheduling.provisioningModel.")
    limit = scheduling.get("maxRunDuration")
    end = scheduling.get("terminationTime")
    if limit is not None and end is not None:
        raise invalid("You can only specify one of maxRunDuration and terminationTime.")
    if end is not None:
        raise ApiError(501, "notImplemented", "this emulator has no scheduling.terminationTime")
    if limit is not None and not 30 <= seconds_of(limit) <= 120 * 86400:
        raise invalid_field(
            "resource.scheduling.maxRunDuration", seconds_of(limit), "Must be between 30 seconds and 120 days."
        )
    action = scheduling.get("instanceTerminationAction", "INSTANCE_TERMINATION_ACTION_UNSPECIFIED")
    if action in ("STOP", "DELETE") and model != "SPOT" and limit is None:
        raise invalid(
            "You cannot specify an instance termination action unless the provisioning model is SPOT or "
            "maxRunDuration or terminationTime is set."
        )
    if limit is not None and model == "STANDARD" and action not in ("STOP", "DELETE"):
        raise invalid("instanceTerminationAction must be set when maxRunDuration is set.")


def _check_flex_start(properties: Mapping[str, Any], found: Machine, *, in_group: bool) -> None:
    """https://docs.cloud.google.com/compute/docs/instances/about-flex-start-vms and about-resize-requests-mig there."""
    scheduling = properties["scheduling"]
    if not in_group:
        # Of one VM it waits by `params.requestValidForDuration`: "Relevant only for Instances.Insert API".
        raise invalid("Provisioning model FLEX_START is not supported by bulkInsert.")
    if found.family not in ("a2", "a3", "a4", "g2"):
        raise invalid(f"Machine type '{found.name}' does not support the provisioning model FLEX_START.")
    if scheduling.get("automaticRestart", False):
        raise invalid("Scheduling must have automaticRestart be false when the provisioning model is FLEX_START.")
    if not 600 <= seconds_of(scheduling.get("maxRunDuration", {})) <= 7 * 86400:
        raise invalid("maxRunDuration of 10 minutes to 7 days is required by the provisioning model FLEX_START.")
    if scheduling.get("instanceTerminationAction") != "DELETE" or scheduling.get("onHostMaintenance") != "TERMINATE":
        raise invalid("FLEX_START requires instanceTerminationAction DELETE and onHostMaintenance TERMINATE.")
    if properties.get("reservationAffinity", {}).get("consumeReservationType") != "NO_RESERVATION":
        raise invalid("FLEX_START requires reservationAffinity NO_RESERVATION.")


def seconds_of(duration: Mapping[str, Any]) -> float:
    return int(duration.get("seconds", 0)) + int(duration.get("nanos", 0)) / 1e9


def _check_disks(disks: list[Mapping[str, Any]], found: Machine) -> list[tuple[str, int]]:
    """(type, GB) of each persistent disk."""
    if sum(bool(disk.get("boot")) for disk in disks) != 1 or not disks[0].get("boot"):
        raise invalid("Invalid value for field 'resource.disks': ''. The first disk, and only it, must be a boot disk.")
    result = []
    for index, disk in enumerate(disks):
        where = f"resource.disks[{index}]"
        if "source" in disk or disk.get("type", "PERSISTENT") != "PERSISTENT":
            raise ApiError(501, "notImplemented", f"this emulator makes only new persistent disks ({where})")
        start = disk.get("initializeParams", {})
        check_labels(f"{where}.initializeParams.labels", start.get("labels", {}))
        kind = start.get("diskType", "pd-standard")
        if kind not in (*DISK_TYPES[False], *DISK_TYPES[True]):
            raise invalid_field(f"{where}.initializeParams.diskType", kind, "Bare name of a disk type expected.")
        if kind not in DISK_TYPES[found.hyperdisk]:
            raise invalid(f"[{found.name}, {kind}] features are not compatible for creating instance.")
        if index == 0 and "sourceImage" not in start:
            raise invalid_field(f"{where}.initializeParams.sourceImage", "", "No boot image.")
        least = image_of(start["sourceImage"]).size_gb if "sourceImage" in start else 10
        size = int(start.get("diskSizeGb", disk.get("diskSizeGb", least)))
        if not least <= size <= 65536:
            raise invalid_field(
                f"{where}.initializeParams.diskSizeGb",
                size,
                f"Requested disk size cannot be smaller than the image size ({least} GB)",
            )
        result.append((kind, size))
    return result


def image_of(url: str) -> Image:
    """An image by URL or partial URL, by name or family.

    Raises:
        ApiError: 400 or 404.
    """
    match = re.fullmatch(
        r"(?:https://(?:www|compute)\.googleapis\.com/compute/v1/)?projects/([^/]+)/global/images/(family/)?([^/]+)",
        url,
    )
    if match is None:
        raise invalid_field("resource.disks[0].initializeParams.sourceImage", url, "The URL is malformed.")
    for image in IMAGES:
        if image.project == match[1] and match[3] == (image.family if match[2] else image.name):
            return image
    raise not_found(f"projects/{match[1]}/global/images/{match[2] or ''}{match[3]}")
