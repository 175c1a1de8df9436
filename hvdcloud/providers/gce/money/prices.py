"""What nodes, disks, addresses and buckets cost, estimated from a dated table: price_table.py.

Sustained-use discounts, free tiers and network traffic are left out. A month is 730 hours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date

from hvdcloud.providers.gce.money import catalog, price_table
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.money.price_table import Table
from hvdcloud.providers.gce.names import region_of


def node_dollars_per_hour(
    kind: NodeKind,
    *,
    disk_gb: float,
    external_ip: bool,
    region: str | None = None,
) -> float | None:
    """The estimate for one node: machine, GPUs, boot disk and external address.

    Args:
        region: None, or one that the table does not have: the prices of `region()`. Regions differ by 10 to 50 %.

    Returns:
        US dollars an hour; None if the table lacks the machine or the GPU.

    Raises:
        UsageError: the machine type is not in the catalogue.
    """
    machine = catalog.machine(kind.machine_type)
    parts: list[tuple[float, str]]
    if not machine.takes_gpus:
        parts = [(1, machine.name)]
    else:
        parts = [
            (machine.vcpus, price_table.N1_VCPU),
            (machine.memory_gb, price_table.N1_GB),
        ]
        if kind.gpu_type and kind.gpu_count:
            parts.append((kind.gpu_count, kind.gpu_type))
    parts.append((disk_gb / price_table.HOURS_PER_MONTH, price_table.DISK))
    if external_ip:
        parts.append((1, price_table.ADDRESS))
    rates = [_rate(key, spot=kind.spot, region=region) for _, key in parts]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(parts):
        return None
    return sum(amount * rate for (amount, _), rate in zip(parts, known, strict=True))


def disk_dollars_per_hour(*, disk_gb: float, region: str | None = None) -> float:
    """A balanced persistent disk, whether attached or not."""
    return disk_gb * _known_rate(price_table.DISK, region=region) / price_table.HOURS_PER_MONTH


def by_price(zones: Iterable[str], *, price: Callable[[str], float | None]) -> list[str]:
    """`zones`, those of the cheapest region first; what costs the same, or is not known, stays in order.

    While the prices of fewer than two of the regions are known, nothing is moved.

    Args:
        price: of a region; None: not known.
    """
    ordered = list(zones)
    regions = dict.fromkeys(map(region_of, ordered))
    prices = {region: price(region) for region in regions if knows(region)}
    known = {region: dollars for region, dollars in prices.items() if dollars is not None}
    if len(known) < 2:
        return ordered
    return sorted(ordered, key=lambda zone: known.get(region_of(zone), float("inf")))


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


def _rate(key: str, *, spot: bool, region: str | None) -> float | None:
    table, column = _table(), int(spot)
    rates = table.regions.get(region or table.region, table.main)
    rate = rates.get(key, (None, None))[column]
    return table.main.get(key, (None, None))[column] if rate is None and key in price_table.OF_NO_MACHINE else rate


def _known_rate(key: str, *, region: str | None) -> float:
    rate = _rate(key, spot=False, region=region)
    assert rate is not None, key
    return rate
