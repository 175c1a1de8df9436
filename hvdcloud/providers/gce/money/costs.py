"""What VMs and disks have cost, and what they will have cost when Compute Engine deletes them. Pure.

Worked out from the API's resources alone, so that it is the same on every laptop. Compute Engine bills a machine, its
GPUs and its address from RUNNING to STOPPING, by the second and for one minute at least, and a disk for as long as it
exists: https://cloud.google.com/compute/docs/instances/instance-lifecycle. Prices are those of the region and of today.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.json_values import whole_number
from hvdcloud.providers.gce.inventory import Resource
from hvdcloud.providers.gce.money import prices
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.names import last_segment, region_of, zone_of

MINIMUM_SECONDS = 60.0
"""Of every start: https://cloud.google.com/compute/vm-instance-pricing#billingmodel"""

LATE_SECONDS = 30
"""By so much the end may come late: https://cloud.google.com/compute/docs/instances/limit-vm-runtime"""

OFF = frozenset({"STOPPING", "STOPPED", "TERMINATED"})
"""Only the disk is billed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of one cluster, in US dollars; no sum is known where the price of a VM is not."""

    dollars_per_hour: float | None
    """Of VMs that run or are about to, and of disks; None: not known."""
    so_far: float | None
    """None: not known."""
    paid_until: datetime
    """The first minute of a VM that runs counts whole; only what comes after that and after now comes to `so_far`."""
    worst_case: float | None
    """None: not known, or something of it exists until a person deletes it."""
    ends: datetime | None
    """When Compute Engine begins to delete the last of it."""
    since: datetime | None
    """When the first of the VMs began to run; None: none has."""
    notes: tuple[str, ...]
    """Why nothing ends it; what has no price that is known; which prices are of another region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    """One machine, with its GPUs and its address, or one disk."""

    since: datetime
    """When it began to be billed, or is taken to begin: now."""
    until: datetime | None = None
    """When it was no longer billed; None: it still is."""
    per_hour: float
    least: float = 0.0
    """Seconds that are billed at least."""
    waits: bool = False
    """For room, and is not billed meanwhile."""
    ends: datetime | None = None
    endless: str = ""
    """Why nothing ends it; empty if something does."""

    def dollars(self, moment: datetime) -> float:
        """All that it has cost at a moment."""
        seconds = (min(moment, self.until or moment) - self.since).total_seconds()
        return self.per_hour * max(self.least, seconds, 0.0) / 3600


def costs(instances: Sequence[Resource], loose_disks: Sequence[Resource], *, now: datetime) -> Costs:
    """Of all VMs and of the disks that no VM holds, as the API describes them; `now` has its time zone."""
    items = [*(item for vm in instances for item in _vm(vm, now)), *(_disk(disk, now) for disk in loose_disks)]
    endless = list(dict.fromkeys(item.endless for item in items if item.endless))
    ends = [item.ends for item in items if item.ends is not None]
    late = timedelta(seconds=LATE_SECONDS)
    unpriced = {last_segment(vm.get("machineType", "")) for vm in instances if node_dollars_per_hour(vm) is None}
    regions = {region for each in (*instances, *loose_disks) if (region := _region(each)) and not prices.knows(region)}
    instead = f"those of {prices.table().region} are used instead"

    def total(amounts: Iterable[float]) -> float | None:
        return None if unpriced else sum(amounts)

    return Costs(
        dollars_per_hour=total(item.per_hour for item in items if item.until is None and not item.waits),
        so_far=total(item.dollars(now) for item in items),
        paid_until=min((item.since + timedelta(seconds=item.least) for item in items if item.least), default=now),
        worst_case=None if endless else total(item.dollars(max(item.ends or now, now) + late) for item in items),
        ends=max(ends) if ends and not endless else None,
        since=min(filter(None, (moment(vm.get("lastStartTimestamp")) for vm in instances)), default=None),
        notes=(
            *endless,
            *(f"the price table does not know {each}" for each in sorted(unpriced)),
            *(f"the price table has no prices of {each}; {instead}" for each in sorted(regions)),
        ),
    )


def _vm(vm: Resource, now: datetime) -> tuple[_Item, _Item]:
    """The machine and its disk."""
    name, disk_price = str(vm["name"]), prices.disk_dollars_per_hour(disk_gb=_disk_gb(vm), region=_region(vm))
    whole, started = node_dollars_per_hour(vm), moment(vm.get("lastStartTimestamp"))
    waits = vm.get("status") == "PENDING"
    created = now if waits else moment(vm.get("creationTimestamp")) or now
    disk = _Item(since=created, per_hour=disk_price, waits=waits)
    machine = _Item(
        since=started or now,
        per_hour=0.0 if whole is None else whole - disk_price,
        least=MINIMUM_SECONDS if started else 0.0,
        waits=waits,
    )
    if vm.get("status") in OFF:
        # An earlier stop than the last, of which the API says nothing, counts as if it had not been.
        machine = replace(machine, until=moment(vm.get("lastStopTimestamp")) or now)
        return machine, replace(
            disk, endless="" if vm["status"] == "STOPPING" else f"{name} is off, and its disk still costs"
        )
    scheduling = vm.get("scheduling", {})
    end = moment(vm.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp"))
    end = end or moment(scheduling.get("terminationTime"))
    if end is None and (limit := scheduling.get("maxRunDuration")):
        # Its time has not begun to count before it runs.
        end = (started or now) + timedelta(seconds=whole_number(limit.get("seconds")))
    if end is None or scheduling.get("instanceTerminationAction") != "DELETE":
        endless = f"{name} has no time limit that deletes it"
        return replace(machine, endless=endless), replace(disk, endless=endless)
    return replace(machine, ends=end), replace(disk, ends=end)


def _disk(disk: Resource, now: datetime) -> _Item:
    since = moment(disk.get("creationTimestamp")) or now
    per_hour = prices.disk_dollars_per_hour(disk_gb=whole_number(disk.get("sizeGb")), region=_region(disk))
    return _Item(since=since, per_hour=per_hour, endless=f"disk {disk['name']} belongs to no existing VM")


def node_dollars_per_hour(vm: Resource) -> float | None:
    """What a VM costs while it runs, by the price table of its region; None where the tables do not know it."""
    accelerator: Mapping[str, Any] = next(iter(vm.get("guestAccelerators", ())), {})
    # It may be of a machine type that the tables do not have.
    with contextlib.suppress(UsageError):
        kind = NodeKind(
            machine_type=last_segment(vm.get("machineType", "")),
            gpu_type=last_segment(accelerator.get("acceleratorType", "")) or None,
            gpu_count=accelerator.get("acceleratorCount", 0),
            provisioning="spot" if vm.get("scheduling", {}).get("provisioningModel") == "SPOT" else "standard",
        )
        external = any(interface.get("accessConfigs") for interface in vm.get("networkInterfaces", ()))
        return prices.node_dollars_per_hour(kind, disk_gb=_disk_gb(vm), external_ip=external, region=_region(vm))
    return None


def moment(text: object) -> datetime | None:
    """RFC 3339 as the API writes it, `2026-11-20T04:05:06.789-08:00`, in UTC."""
    # Whatever the API writes, a cluster has to be seen to be deleted.
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).astimezone(timezone.utc)
    return None


def _disk_gb(vm: Resource) -> int:
    """Without local SSDs, which come with the machine type and its price."""
    return sum(whole_number(disk.get("diskSizeGb")) for disk in vm.get("disks", ()) if disk.get("type") != "SCRATCH")


def _region(resource: Resource) -> str | None:
    return region_of(zone_of(resource)) or None
