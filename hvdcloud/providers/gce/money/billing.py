"""What the Cloud Billing Catalog says things cost. Pure: its entries → a price table.

An entry (a SKU) is a component, such as an hour of one vCPU of a series in some regions; what a machine costs is their
sum. machines.yaml says which entry is whose. https://cloud.google.com/billing/docs/how-to/get-pricing-information
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from decimal import Decimal
from typing import Any

from hvdcloud.errors import NodeError
from hvdcloud.providers.gce.money import catalog, price_table, prices
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.money.price_table import Pair, Rates, Table

SERVICES = {"Compute Engine": "6F81-5844-456A", "Cloud Storage": "95FF-2EF5-5EA1"}
PAGE_SIZE = 5000
GLOBAL = "global"
ABSURD = Decimal(10)
"""A price that is this many times what it was, or this fraction of it, is treated as an error."""

_PLACE = re.compile(r"(?P<name>.+?) (?:running )?in .+")
# Discounts, reservations, surcharges and places that are not one region. They are known by their names alone: many have
# the usage type OnDemand, and some cost nothing.
_OTHER = re.compile(
    r"\b(commitment|reserved|reservation|dws|calendar mode|flex start|sole tenancy|premium|suspended|early delete"
    r"|dual-region|multi-region|for \d years?)\b",
    re.IGNORECASE,
)
# A Spot VM's address and local SSD have entries that are OnDemand.
_USAGE = ({"OnDemand"}, {"OnDemand", "Preemptible"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Which of the catalog's entries is which of our components."""

    component: str
    name: str
    """The description without its place; a `*` at the end: anything may follow."""
    spot: bool
    unit: str
    group: str | None = None
    """`category.resourceGroup`, where the name alone would not do."""


def entries() -> Iterator[Entry]:
    """Everything that is looked for."""
    families = {machine.sku for machine in catalog.machines()} | {catalog.custom_sku()}
    for sku in sorted(families):
        for part, unit in (("Core", "h"), ("Ram", "GiBy.h")):
            yield Entry(component=f"{sku} {part}", name=f"{sku} {part}", spot=False, unit=unit)
            yield Entry(component=f"{sku} {part}", name=f"Spot Preemptible {sku} {part}", spot=True, unit=unit)
    for gpu in catalog.gpus():
        name = f"{gpu.sku} GPU"
        yield Entry(component=gpu.name, name=name, spot=False, unit="h")
        yield Entry(component=gpu.name, name=f"{name} attached to Spot Preemptible VMs", spot=True, unit="h")
    for component, other in catalog.other_skus().items():
        for spot, key in ((False, "name"), (True, "spot")):
            if key in other:
                unit, group = other["unit"], other.get("group")
                yield Entry(component=component, name=other[key], spot=spot, unit=unit, group=group)


@dataclass(slots=True)
class Reading:
    """The catalog, as far as it was read."""

    skus: int = 0
    """How many entries came."""
    found: dict[tuple[str, bool], dict[str, Decimal]] = field(default_factory=dict)
    """Component, Spot or not → region → dollars."""
    free: set[tuple[str, bool, str]] = field(default_factory=set)
    """What had no price but zero."""
    differing: set[tuple[str, bool, str]] = field(default_factory=set)
    """What had two prices in one region; the higher one counts."""
    _names: dict[str, Entry] = field(default_factory=dict, repr=False)
    _beginnings: dict[str, Entry] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for entry in entries():
            if entry.name.endswith("*"):
                self._beginnings[entry.name[:-1].lower()] = entry
            else:
                self._names[entry.name.lower()] = entry

    def add(self, skus: Sequence[Mapping[str, Any]]) -> None:
        """One page."""
        for sku in skus:
            self.skus += 1
            if (entry := self._entry(sku)) and (dollars := price(sku, unit=entry.unit)) is not None:
                for region in sku.get("serviceRegions") or [GLOBAL]:
                    self._note(entry, str(region), dollars)

    def _entry(self, sku: Mapping[str, Any]) -> Entry | None:
        description = " ".join(str(sku.get("description", "")).split())
        if _OTHER.search(description):
            return None
        place = _PLACE.fullmatch(description)
        name = (place["name"] if place else description).lower()
        entry = self._names.get(name) or next(
            (each for start, each in self._beginnings.items() if description.lower().startswith(start)), None
        )
        category = sku.get("category", {})
        if entry is None or category.get("usageType") not in _USAGE[entry.spot]:
            return None
        return entry if entry.group in (None, category.get("resourceGroup")) else None

    def _note(self, entry: Entry, region: str, dollars: Decimal) -> None:
        where = (entry.component, entry.spot, region)
        if dollars <= 0:
            self.free.add(where)
            return
        prices = self.found.setdefault((entry.component, entry.spot), {})
        known = prices.get(region, dollars)
        if known != dollars:
            self.differing.add(where)
        # The user must not pay more than the estimate.
        prices[region] = max(known, dollars)

    def rate(self, component: str, *, spot: bool, region: str) -> Decimal | None:
        """Dollars for one unit; None: the catalog has none there."""
        prices = self.found.get((component, spot), {})
        return prices.get(region, prices.get(GLOBAL))


def price(sku: Mapping[str, Any], *, unit: str) -> Decimal | None:
    """US dollars a unit; 0 if it is free; None: it is priced in another unit or currency, or not at all.

    The first tier that is not free counts: what a month's first hours or GB cost less is not what a cluster costs.
    """
    timeline = sku.get("pricingInfo") or [{}]
    expression = timeline[-1].get("pricingExpression", {})
    tiers = [tier.get("unitPrice", {}) for tier in expression.get("tieredRates", ())]
    foreign = any(money.get("currencyCode", "USD") != "USD" for money in tiers)
    if expression.get("usageUnit") != unit or not tiers or foreign:
        return None
    amounts = [Decimal(str(money.get("units") or 0)) + Decimal(money.get("nanos") or 0) / 10**9 for money in tiers]
    return next((amount for amount in amounts if amount != 0), Decimal(0))


def table_of(reading: Reading, *, before: Table, shipped: Table, today: date) -> Table:
    """The new price table: the regions that have machines, and what the main one lacks from the table `before`.

    Args:
        shipped: the table that the answer's prices are compared with.

    Raises:
        NodeError: the answer cannot be right.
    """
    _check_zeros(reading, shipped)
    places = {region for prices in reading.found.values() for region in prices} - {GLOBAL}
    rates = {region: _rates(reading, region) for region in sorted(places)}
    # Buckets are also sold in places where there are no machines: `us`, `nam4`.
    regions = {region: found for region, found in rates.items() if set(found) - price_table.OF_NO_MACHINE}
    main = regions.get(before.region, {})
    merged, kept = _completed(main, before.main)
    _check_main(merged, main, shipped)
    return Table(
        format=price_table.FORMAT,
        as_of=today,
        region=before.region,
        regions={**regions, before.region: merged},
        skus=reading.skus,
        kept=kept,
    )


def _rates(reading: Reading, region: str) -> Rates:
    pairs: Rates = {}
    for key, parts in _parts():
        columns = [_sum(reading, parts, spot=spot, region=region) for spot in (False, True)]
        if key in (price_table.DISK, price_table.BUCKET):  # They cost the same for every VM.
            columns[1] = columns[0]
        if columns != [None, None]:
            pairs[key] = (columns[0], columns[1])
    return pairs


def _parts() -> Iterator[tuple[str, list[tuple[Decimal, str]]]]:
    """The price table's names, and the components whose sum each is."""
    n1 = next(machine for machine in catalog.machines() if machine.takes_gpus)
    custom = catalog.custom_sku()
    yield price_table.N1_VCPU, [(Decimal(1), f"{n1.sku} Core")]
    yield price_table.N1_GB, [(Decimal(1), f"{n1.sku} Ram")]
    yield price_table.CUSTOM_VCPU, [(Decimal(1), f"{custom} Core")]
    yield price_table.CUSTOM_GB, [(Decimal(1), f"{custom} Ram")]
    for machine in catalog.machines():
        if machine.gpu_type:
            sizes = [
                (Decimal(machine.vcpus), f"{machine.sku} Core"),
                (Decimal(str(machine.memory_gb)), f"{machine.sku} Ram"),
                (Decimal(machine.gpu_count), machine.gpu_type),
                (Decimal(machine.local_ssd_gb) / price_table.HOURS_PER_MONTH, price_table.LOCAL_SSD),
            ]
            yield machine.name, [part for part in sizes if part[0]]
    for gpu in catalog.gpus():
        if gpu.limits:
            yield gpu.name, [(Decimal(1), gpu.name)]
    for key in (*price_table.EVERYWHERE, price_table.LOCAL_SSD):
        yield key, [(Decimal(1), key)]


def _sum(reading: Reading, parts: Sequence[tuple[Decimal, str]], *, spot: bool, region: str) -> float | None:
    rates = [reading.rate(component, spot=spot, region=region) for _, component in parts]
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(parts):
        return None
    total = sum((amount * rate for (amount, _), rate in zip(parts, known, strict=True)), Decimal(0))
    return float(round(total, 9))


def _completed(main: Rates, before: Rates) -> tuple[Rates, list[str]]:
    """The main region's figures with what is missing taken from the table before, and what that was."""
    merged, kept = dict(main), []
    for key, old in before.items():
        new = main.get(key, (None, None))
        pair: Pair = (new[0] if new[0] is not None else old[0], new[1] if new[1] is not None else old[1])
        lacks = [word for word, mine, other in zip(("on demand", "Spot"), new, old, strict=True) if other and not mine]
        kept += [f"{key} ({' and '.join(lacks)})"] if lacks else []
        merged[key] = pair
    return merged, kept


def _check_zeros(reading: Reading, shipped: Table) -> None:
    needed = {component for key, parts in _parts() if key in shipped.main for _, component in parts}
    for component, spot, region in sorted(reading.free):
        # Elsewhere it may be a region that is not open yet; there the price is simply not known.
        unknown = reading.rate(component, spot=spot, region=shipped.region) is None
        if unknown and component in needed and region in (shipped.region, GLOBAL):
            kind = "for Spot" if spot else "on demand"
            raise _unbelievable(f"{component} {kind} costs nothing in {shipped.region}")


def _check_main(merged: Rates, main: Rates, shipped: Table) -> None:
    found = sum(key in main for key in shipped.main)
    if found * 2 < len(shipped.main):
        raise _unbelievable(f"it has {found} of the {len(shipped.main)} prices of {shipped.region}")
    for key, old in shipped.main.items():
        for column, kind in enumerate(("on demand", "for Spot")):
            was, now = old[column], merged.get(key, (None, None))[column]
            if was is None or now is None:
                continue
            if not 1 / ABSURD <= Decimal(now) / Decimal(was) <= ABSURD:
                message = f"{key} {kind} costs ${now:g} in {shipped.region} and cost ${was:g} on {shipped.as_of}"
                raise _unbelievable(message)


def _unbelievable(what: str) -> NodeError:
    return NodeError(
        f"the price catalog cannot be right: {what}; nothing was written",
        hint="the prices so far stay in use; run hvdcloud prices refresh again another day",
    )


def compare(before: Table, after: Table) -> tuple[list[tuple[str, float, float]], int]:
    """Whose price has changed: nodes, disks and other parts in the main region, and how many figures elsewhere.

    Returns:
        (what, dollars before, dollars now), what changed most first; the number of other figures that changed.
    """
    changed = []
    for kind in _nodes():
        was, now = (
            prices.node_dollars_per_hour(kind, disk_gb=0, external_ip=False, table=table) for table in (before, after)
        )
        if was is not None and now is not None and was != now:
            name = f"{kind.machine_type} + {kind.gpu_type}" if kind.gpu_type else kind.machine_type
            changed.append((f"Spot {name}" if kind.spot else name, was, now))
    for key in (*price_table.EVERYWHERE, price_table.LOCAL_SSD):
        (was, _), (now, _) = before.main.get(key, (None, None)), after.main.get(key, (None, None))
        if was and now and was != now:
            changed.append((key, was, now))
    elsewhere = sum(
        rates.get(key) != pair
        for region, rates in after.regions.items()
        if region != after.region
        for key, pair in before.regions.get(region, {}).items()
    )
    return sorted(changed, key=lambda each: -abs(each[2] / each[1] - 1)), elsewhere


def _nodes() -> Iterator[NodeKind]:
    """Each on demand, then Spot."""
    attached = [None, *(gpu.name for gpu in catalog.gpus() if gpu.limits)]
    kinds = [NodeKind(machine_type="n1-standard-8", gpu_type=gpu, gpu_count=1) for gpu in attached]
    kinds += [NodeKind(machine_type=machine.name) for machine in catalog.machines() if machine.gpu_type]
    for kind in kinds:
        yield from (kind, replace(kind, spot=True))
