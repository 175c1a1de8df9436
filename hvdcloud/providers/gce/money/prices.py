"""What nodes, disks, addresses and buckets cost, estimated from a dated table: price_table.py.

Sustained-use discounts, free tiers and network traffic are left out. A month is 730 hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date

from hvdcloud.providers.gce.money import catalog, price_table
from hvdcloud.providers.gce.money.price_table import (
    ADDRESS,
    BUCKET,
    CUSTOM_GB,
    CUSTOM_VCPU,
    DISK,
    EVERYWHERE,
    HOURS_PER_MONTH,
    N1_GB,
    N1_VCPU,
    Table,
)

_GB = 2**30


def node_dollars_per_hour(
    *,
    machine_type: str,
    gpu_type: str | None,
    gpu_count: int,
    spot: bool,
    disk_gb: float,
    external_ip: bool,
    region: str | None = None,
    table: Table | None = None,
) -> float | None:
    """The estimate for one node: machine, GPUs, boot disk and external address.

    Args:
        region: None, or one that the table does not know: the prices of `region()`. Regions differ by 10 to 50 %.
        table: None: the one that counts.

    Returns:
        US dollars an hour; None if the table lacks the machine or the GPU.

    Raises:
        UsageError: the machine type is not in the catalogue.
    """
    machine = catalog.machine(machine_type)
    parts: list[tuple[float, str]]
    if not machine.takes_gpus:
        parts = [(1, machine.name)]
    else:
        vcpu, gb = (CUSTOM_VCPU, CUSTOM_GB) if machine.custom else (N1_VCPU, N1_GB)
        parts = [(machine.vcpus, vcpu), (machine.memory_gb, gb)]
        if gpu_type and gpu_count:
            parts.append((gpu_count, gpu_type))
    parts.append((disk_gb / HOURS_PER_MONTH, DISK))
    if external_ip:
        parts.append((1, ADDRESS))
    table = table or _table()
    rates = [_rate(table, key, spot=spot, region=region) for _, key in parts]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(parts):
        return None
    return sum(amount * rate for (amount, _), rate in zip(parts, known, strict=True))


def disk_dollars_per_hour(*, disk_gb: float, region: str | None = None) -> float:
    """A balanced persistent disk, whether attached or not."""
    return disk_gb * _known_rate(DISK, region=region) / HOURS_PER_MONTH


def bucket_dollars_per_month(*, size_bytes: int, region: str | None = None) -> float:
    """Standard storage in a bucket of one region."""
    return size_bytes / _GB * _known_rate(BUCKET, region=region)


def by_price(zones: Iterable[str], *, price: Callable[[str], float | None]) -> list[str]:
    """`zones`, those of the cheapest region first; what costs the same, or is not known, stays in order.

    While the prices of fewer than two of the regions are known, nothing is moved.

    Args:
        price: of a region that the table knows; None: not known there.
    """
    ordered = list(zones)
    regions = dict.fromkeys(zone.rpartition("-")[0] for zone in ordered)
    prices = {region: price(region) for region in regions if knows(region)}
    known = {region: dollars for region, dollars in prices.items() if dollars is not None}
    if len(known) < 2:
        return ordered
    return sorted(ordered, key=lambda zone: known.get(zone.rpartition("-")[0], float("inf")))


def as_of() -> date:
    """The day of the prices."""
    return _table().as_of


def region() -> str:
    """The region whose prices are used for regions that are not known."""
    return _table().region


def knows(region: str) -> bool:
    """False: the figures for it are those of `region()`, an estimate."""
    return region in _table().regions


def notices() -> tuple[str, ...]:
    """Why a table that was refreshed is not used; empty: it is, or there is none."""
    return price_table.chosen().notices


def _table() -> Table:
    return price_table.chosen().table


def _rate(table: Table, key: str, *, spot: bool, region: str | None) -> float | None:
    column = int(spot)
    rates = table.regions.get(region or table.region, table.main)
    rate = rates.get(key, (None, None))[column]
    if rate is None and key in EVERYWHERE:
        return table.main[key][column]
    return rate


def _known_rate(key: str, *, region: str | None, spot: bool = False) -> float:
    rate = _rate(_table(), key, spot=spot, region=region)
    assert rate is not None, key
    return rate
