"""`hvdcloud offers --refresh`: every region's prices from Google's Cloud Billing Catalog.

An entry of the catalog (a SKU) is a component, such as an hour of one vCPU of a series in some regions; what a machine
costs is their sum. machines.yaml says which entry is whose. https://cloud.google.com/billing/docs/how-to/get-pricing-information
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

from hvdcloud.errors import NodeError
from hvdcloud.google.credentials import google_credentials
from hvdcloud.google.errors import explained
from hvdcloud.google.http import ApiCalls, ask
from hvdcloud.providers.gce.money import catalog, prices
from hvdcloud.providers.gce.money.prices import Rates, Table

COMPUTE_ENGINE = "6F81-5844-456A"
GLOBAL = "global"

_PLACE = re.compile(r"(?P<name>.+?) (?:running )?in .+")
# Discounts, reservations and surcharges. They are known by their names alone: many have the usage type OnDemand, and
# some cost nothing.
_OTHER = re.compile(
    r"\b(commitment|reserved|reservation|dws|calendar mode|flex start|sole tenancy|premium|suspended|for \d years?)\b"
)
# A Spot VM's address and local SSD have entries that are OnDemand.
_USAGE = ({"OnDemand"}, {"OnDemand", "Preemptible"})

Component = tuple[str, bool]
"""Its name, and whether it is a Spot VM's."""
Found = Mapping[Component, Mapping[str, Decimal]]
"""Component → region → dollars for one unit."""


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
    api = ApiCalls(project=chosen, credentials=credentials, service="cloudbilling")
    api.on_retry = on_progress
    parameters: dict[str, Any] = {"currencyCode": "USD", "pageSize": 5000}
    skus: list[Mapping[str, Any]] = []
    with explained("read the price catalog"):
        while parameters.get("pageToken") != "":
            page = ask(api, "GET", f"services/{COMPUTE_ENGINE}/skus", params=parameters)
            skus += page.get("skus", ())
            on_progress(f"{len(skus)} prices read")
            parameters["pageToken"] = page.get("nextPageToken", "")
    prices.save(table_of(skus, today=datetime.now(timezone.utc).date()))


def table_of(skus: Iterable[Mapping[str, Any]], *, today: date) -> Table:
    """The price table of the catalog's entries: the regions that have machines. Pure.

    Raises:
        NodeError: the answer cannot be right.
    """
    found, shipped = _found(skus), prices.shipped()
    places = {region for by_region in found.values() for region in by_region} - {GLOBAL}
    regions = {region: _rates(found, region) for region in sorted(places)}
    regions = {region: rates for region, rates in regions.items() if rates.keys() - {*prices.OF_NO_MACHINE}}
    main = regions.get(shipped.region, {})
    if (count := sum(key in main for key in shipped.main)) * 2 < len(shipped.main):
        why = f"it has {count} of the {len(shipped.main)} prices of {shipped.region}"
        hint = "the prices so far stay in use; run hvdcloud offers --refresh again another day"
        raise NodeError(f"the price catalog cannot be right: {why}; nothing was written", hint=hint)
    return Table(as_of=today, region=shipped.region, regions=regions)


def _found(skus: Iterable[Mapping[str, Any]]) -> Found:
    """What the components cost; of two prices in one region, the higher one: a user must not pay more than that."""
    wanted = _wanted()
    found: dict[Component, dict[str, Decimal]] = {}
    for sku in skus:
        description = " ".join(str(sku.get("description", "")).lower().split())
        place = _PLACE.fullmatch(description)
        component, unit = wanted.get(place["name"] if place else description, (None, ""))
        if component is None or _OTHER.search(description):
            continue
        if sku.get("category", {}).get("usageType") not in _USAGE[component[1]]:
            continue
        if dollars := price(sku, unit=unit):
            by_region = found.setdefault(component, {})
            for region in sku.get("serviceRegions") or [GLOBAL]:
                by_region[region] = max(dollars, by_region.get(region, dollars))
    return found


def _wanted() -> dict[str, tuple[Component, str]]:
    """An entry's description without its place, in lower case → what it is, and its unit."""
    wanted: dict[str, tuple[Component, str]] = {}
    for sku in {machine.sku for machine in catalog.machines().values() if machine.sku}:
        for part, unit in (("Core", "h"), ("Ram", "GiBy.h")):
            name = f"{sku} {part}"
            wanted |= {name: ((name, False), unit), f"Spot Preemptible {name}": ((name, True), unit)}
    for gpu in [each for each in catalog.gpus().values() if each.sku]:
        name = f"{gpu.sku} GPU"
        wanted |= {name: ((gpu.name, False), "h"), f"{name} attached to Spot Preemptible VMs": ((gpu.name, True), "h")}
    for component, other in catalog.other_skus().items():
        wanted |= {
            other[key]: ((component, spot), other["unit"])
            for spot, key in ((False, "name"), (True, "spot"))
            if key in other
        }
    return {name.lower(): entry for name, entry in wanted.items()}


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
    """One region's figures: each name of the price table is the sum of some components."""
    n1 = next(machine.sku for machine in catalog.machines().values() if machine.takes_gpus)
    sums: dict[str, dict[str, float]] = {prices.N1_VCPU: {f"{n1} Core": 1}, prices.N1_GB: {f"{n1} Ram": 1}}
    sums |= {gpu.name: {gpu.name: 1} for gpu in catalog.gpus().values() if gpu.limits}
    sums |= {key: {key: 1} for key in prices.OF_NO_MACHINE}
    for machine in catalog.machines().values():
        if machine.gpu_type:
            sums[machine.name] = {
                f"{machine.sku} Core": machine.vcpus,
                f"{machine.sku} Ram": machine.memory_gb,
                machine.gpu_type: machine.gpu_count,
                prices.LOCAL_SSD: machine.local_ssd_gb / prices.HOURS_PER_MONTH,
            }

    def dollars(parts: Mapping[str, float], *, spot: bool) -> float | None:
        total = Decimal(0)
        for name, amount in parts.items():
            by_region = found.get((name, spot), {})
            each = by_region.get(region, by_region.get(GLOBAL))
            if each is None and amount:
                return None
            total += Decimal(str(amount)) * (each or 0)
        return float(round(total, 9))

    rates: Rates = {key: (dollars(parts, spot=False), dollars(parts, spot=True)) for key, parts in sums.items()}
    # Disks cost the same for every VM.
    rates[prices.DISK] = (rates[prices.DISK][0], rates[prices.DISK][0])
    return {key: pair for key, pair in rates.items() if pair != (None, None)}
