"""`hvdcloud offers --refresh`: every region's prices from Google's Cloud Billing Catalog.

An entry of the catalog (a SKU) is a component, such as an hour of one vCPU of a series in some regions; what a machine
costs is their sum. machines.yaml says which entry is whose. https://cloud.google.com/billing/docs/how-to/get-pricing-information
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from hvdcloud.errors import NodeError
from hvdcloud.google.credentials import google_credentials
from hvdcloud.google.errors import ApiError
from hvdcloud.google.http import Transport
from hvdcloud.providers.gce.money import catalog, price_table
from hvdcloud.providers.gce.money.price_table import Pair, Rates, Table

SERVICES = {"Compute Engine": "6F81-5844-456A", "Cloud Storage": "95FF-2EF5-5EA1"}
PAGE_SIZE = 5000
GLOBAL = "global"
ABSURD = 10.0
"""A price that is this many times what it was, or this fraction of it, is treated as an error."""

_PLACE = re.compile(r"(?P<name>.+?) (?:running )?in .+")
# Discounts, reservations, surcharges and places that are not one region. They are known by their names alone: many have
# the usage type OnDemand, and some cost nothing.
_OTHER = re.compile(
    r"\b(commitment|reserved|reservation|dws|calendar mode|flex start|sole tenancy|premium|suspended|early delete"
    r"|dual-region|multi-region|for \d years?)\b"
)
# A Spot VM's address and local SSD have entries that are OnDemand.
_USAGE = ({"OnDemand"}, {"OnDemand", "Preemptible"})

Found = dict[tuple[str, bool], dict[str, Decimal]]
"""(component, Spot or not) → region → dollars for one unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Which of the catalog's entries is which of our components."""

    component: str
    name: str
    """The description without its place; a `*` at the end: anything may follow."""
    spot: bool
    unit: str
    group: str | None = None
    """`category.resourceGroup`, where the name alone would not do."""


def refresh(*, project: str | None, on_progress: Callable[[str], None]) -> None:
    """Read the whole catalog, then replace the refreshed table in one move. A failure before that changes nothing.

    Args:
        project: whose quota is used; None: the credentials' own.
        on_progress: called with a line for people.

    Raises:
        CredentialsError: there are none, or they are refused.
        NodeError: the API cannot be reached, or its answer cannot be right.
        UsageError, CapacityError: the table cannot be written.
    """
    from google.oauth2.credentials import Credentials

    credentials, chosen = google_credentials(project)
    if isinstance(credentials, Credentials) and not credentials.quota_project_id:
        # A person's calls of this API count against a project, which has to be named:
        # https://cloud.google.com/docs/authentication/troubleshoot-adc#user-creds-client-based
        credentials = credentials.with_quota_project(chosen)
    transport = Transport(project=chosen, credentials=credentials, service="cloudbilling", base_path="/v1/")
    transport.on_retry = on_progress
    skus: list[Mapping[str, Any]] = []
    try:
        for name, service in SERVICES.items():
            parameters = {"currencyCode": "USD", "pageSize": PAGE_SIZE}
            for page in transport.pages(f"services/{service}/skus", parameters):
                skus += page.get("skus", ())
                on_progress(f"{name}: {len(skus)} prices read")
    except ApiError as error:
        raise error.as_user_error(doing="read the price catalog") from error
    price_table.save(table_of(skus, before=price_table.chosen().table, today=datetime.now(timezone.utc).date()))


def table_of(skus: Iterable[Mapping[str, Any]], *, before: Table, today: date) -> Table:
    """The price table of the catalog's entries: the regions that have machines. Pure.

    Args:
        before: has the main region's figures for what the catalog lacks.

    Raises:
        NodeError: the answer cannot be right.
    """
    found = _found(skus)
    places = {region for prices in found.values() for region in prices} - {GLOBAL}
    rates = {region: _rates(found, region) for region in sorted(places)}
    # Buckets are also sold in places where there are no machines: `us`, `nam4`.
    regions = {region: each for region, each in rates.items() if each.keys() - price_table.OF_NO_MACHINE}
    main = regions.get(before.region, {})
    _check(main, price_table.shipped())
    for key, (on_demand, spot) in before.main.items():
        new = main.get(key, (None, None))
        main[key] = (on_demand if new[0] is None else new[0], spot if new[1] is None else new[1])
    return Table(format=price_table.FORMAT, as_of=today, region=before.region, regions={**regions, before.region: main})


def _found(skus: Iterable[Mapping[str, Any]]) -> Found:
    """What the components cost; of two prices in one region, the higher one: a user must not pay more than that."""
    entries = {entry.name.lower(): entry for entry in _entries()}
    beginnings = {name[:-1]: entry for name, entry in entries.items() if name.endswith("*")}
    found: Found = {}
    for sku in skus:
        description = " ".join(str(sku.get("description", "")).lower().split())
        place = _PLACE.fullmatch(description)
        begun = next((each for start, each in beginnings.items() if description.startswith(start)), None)
        entry, category = entries.get(place["name"] if place else description, begun), sku.get("category", {})
        if entry is None or _OTHER.search(description) or category.get("usageType") not in _USAGE[entry.spot]:
            continue
        if entry.group not in (None, category.get("resourceGroup")) or not (dollars := price(sku, unit=entry.unit)):
            continue
        prices = found.setdefault((entry.component, entry.spot), {})
        for region in sku.get("serviceRegions") or [GLOBAL]:
            prices[region] = max(dollars, prices.get(region, dollars))
    return found


def _entries() -> Iterator[_Entry]:
    """Everything that is looked for."""
    for sku in sorted({machine.sku for machine in catalog.machines()}):
        for part, unit in (("Core", "h"), ("Ram", "GiBy.h")):
            yield _Entry(component=f"{sku} {part}", name=f"{sku} {part}", spot=False, unit=unit)
            yield _Entry(component=f"{sku} {part}", name=f"Spot Preemptible {sku} {part}", spot=True, unit=unit)
    for gpu in catalog.gpus():
        name = f"{gpu.sku} GPU"
        yield _Entry(component=gpu.name, name=name, spot=False, unit="h")
        yield _Entry(component=gpu.name, name=f"{name} attached to Spot Preemptible VMs", spot=True, unit="h")
    for component, other in catalog.other_skus().items():
        for spot, key in ((False, "name"), (True, "spot")):
            if key in other:
                unit, group = other["unit"], other.get("group")
                yield _Entry(component=component, name=other[key], spot=spot, unit=unit, group=group)


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
    return next((amount for amount in amounts if amount > 0), Decimal(0))


def _rates(found: Found, region: str) -> Rates:
    """One region's figures."""
    rates: Rates = {}
    for key, parts in _parts():
        on_demand, spot = (_sum(found, parts, spot=spot, region=region) for spot in (False, True))
        # Disks and buckets cost the same for every VM.
        pair: Pair = (on_demand, on_demand if key in (price_table.DISK, price_table.BUCKET) else spot)
        if pair != (None, None):
            rates[key] = pair
    return rates


def _parts() -> Iterator[tuple[str, list[tuple[Decimal, str]]]]:
    """The price table's names, and the components whose sum each is."""
    n1 = next(machine for machine in catalog.machines() if machine.takes_gpus)
    yield price_table.N1_VCPU, [(Decimal(1), f"{n1.sku} Core")]
    yield price_table.N1_GB, [(Decimal(1), f"{n1.sku} Ram")]
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


def _sum(found: Found, parts: Sequence[tuple[Decimal, str]], *, spot: bool, region: str) -> float | None:
    """None: the catalog lacks a part."""
    total = Decimal(0)
    for amount, component in parts:
        prices = found.get((component, spot), {})
        if (dollars := prices.get(region, prices.get(GLOBAL))) is None:
            return None
        total += amount * dollars
    return float(round(total, 9))


def _check(main: Rates, shipped: Table) -> None:
    """Raises NodeError: the figures of the main region cannot be right, beside those that are shipped."""
    why = ""
    if (count := sum(key in main for key in shipped.main)) * 2 < len(shipped.main):
        why = f"it has {count} of the {len(shipped.main)} prices of {shipped.region}"
    for key, old in shipped.main.items():
        for was, now in zip(old, main.get(key, (None, None)), strict=True):
            if was and now and not 1 / ABSURD <= now / was <= ABSURD:
                why = f"{key} costs ${now:g} in {shipped.region} and cost ${was:g} on {shipped.as_of}"
    if why:
        hint = "the prices so far stay in use; run hvdcloud offers --refresh again another day"
        raise NodeError(f"the price catalog cannot be right: {why}; nothing was written", hint=hint)
