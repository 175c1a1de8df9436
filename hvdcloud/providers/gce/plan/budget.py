"""How long nodes may live, what they cost meanwhile, and which zones `limits.max_cost` pays for. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hvdcloud.cluster.model import Within
from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.money import prices
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.money.costs import LATE_SECONDS
from hvdcloud.providers.gce.names import region_of
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings, groups
from hvdcloud.units import counted, dollars, some

# https://cloud.google.com/compute/docs/instances/limit-vm-runtime: 30 s to 120 days, up to 30 s late.
MIN_RUN_SECONDS = 30
MAX_RUN_SECONDS = 120 * 86400
START_SECONDS = 60
"""Allowed for, from a VM's creation until it runs: only then its time limit begins to count."""


def node_dollars_per_hour(settings: Settings, kind: NodeKind, *, zone: str | None = None) -> float | None:
    """The estimate for one node with its disks and address, in a zone or in the table's own region; None: not known."""
    region, external = region_of(zone) if zone else None, settings.needs_external_ip
    return prices.node_dollars_per_hour(kind, disk_gb=settings.disk_gb, external_ip=external, region=region)


def dollars_per_hour(settings: Settings, *, nodes: int, zone: str | None = None) -> float | None:
    """As `node_dollars_per_hour`, for all nodes of a cluster together."""
    dollars = 0.0
    for group in groups(settings, range(nodes)):
        each = node_dollars_per_hour(settings, group.kind, zone=zone)
        if each is None:
            return None
        dollars += group.nodes * each
    return dollars


def unpriced(settings: Settings, *, nodes: int, zone: str | None = None) -> str:
    """The kinds of node that the price table does not know, in words; empty: it knows all of them."""
    kinds = [group.kind for group in groups(settings, range(nodes))]
    return " and ".join(str(kind) for kind in kinds if node_dollars_per_hour(settings, kind, zone=zone) is None)


def allowed_seconds(settings: Settings, *, nodes: int, zone: str | None = None) -> int:
    """How long the nodes may live: `limits.max_run_duration`, or less where `limits.max_cost` buys less.

    By the prices of a zone, or of the price table's own region.

    Raises:
        UsageError: outside of what Compute Engine takes; the money buys less than that; or the price is not known.
    """
    check_run_seconds(settings.max_run_seconds, "limits.max_run_duration")
    if settings.max_cost is None:
        return settings.max_run_seconds
    dollars = dollars_per_hour(settings, nodes=nodes, zone=zone)
    if dollars is None:
        raise UsageError(
            f"the price of {unpriced(settings, nodes=nodes, zone=zone)} is not in the price table, so limits.max_cost "
            "cannot be kept",
            hint="take limits.max_cost out and set limits.max_run_duration",
        )
    bought = math.floor(settings.max_cost / dollars * 3600) - START_SECONDS - LATE_SECONDS
    if bought < MIN_RUN_SECONDS:
        where = f" in {zone}" if zone else ""
        raise UsageError(
            f"limits.max_cost of ${settings.max_cost:.2f} is less than two minutes of {counted(nodes, 'node')} at "
            f"${dollars:.2f}/h in all{where}",
            hint="raise limits.max_cost, or take fewer or smaller nodes",
        )
    return min(settings.max_run_seconds, bought)


def limited(settings: Settings, within: Within | None, *, now: datetime) -> Settings:
    """The settings of one attempt of a run: `limits` without what earlier attempts have taken of them."""
    if within is None:
        return settings
    # The limit of a VM counts only from when it runs.
    seconds = math.floor((within.ends - now).total_seconds()) - START_SECONDS
    return replace(settings, max_run_seconds=min(settings.max_run_seconds, seconds), max_cost=within.max_dollars)


def check_run_seconds(seconds: int, what: str) -> None:
    """Raises UsageError: outside of what Compute Engine takes."""
    if not MIN_RUN_SECONDS <= seconds <= MAX_RUN_SECONDS:
        raise UsageError(
            f"{what} of {seconds} s: Compute Engine takes 30 s to 120 days", hint="write limits.max_run_duration: 12h"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidZone:
    """All nodes in one zone."""

    zone: str
    seconds: int
    """After which Compute Engine deletes them."""
    dollars_per_hour: float | None
    """None: the price table does not know them."""
    worst_case_dollars: float
    """If only their time limit ends them; 0: the price is not known."""


def paid_zones(settings: Settings, zones: Sequence[str], *, nodes: int) -> tuple[list[PaidZone], list[str]]:
    """The zones that `limits.max_cost` pays for, in order, and the others. Raises UsageError: it pays for none."""
    found: list[PaidZone] = []
    refused: dict[str, UsageError] = {}
    for zone in zones:
        try:
            seconds = allowed_seconds(settings, nodes=nodes, zone=zone)
        except UsageError as error:
            refused[zone] = error
            continue
        hourly = dollars_per_hour(settings, nodes=nodes, zone=zone)
        # From their creation, so more than the one minute that is billed at least, until Compute Engine has been as
        # late as it may be.
        worst_case = (hourly or 0.0) * (START_SECONDS + seconds + LATE_SECONDS) / 3600
        found.append(PaidZone(zone=zone, seconds=seconds, dollars_per_hour=hourly, worst_case_dollars=worst_case))
    if not found:
        raise next(iter(refused.values()))
    return found, list(refused)


def notices(settings: Settings, offers: Sequence[PaidZone], unpaid: Sequence[str], *, nodes: int) -> Iterator[str]:
    """What a person should know before these zones are tried in this order."""
    first = offers[0]
    yield from _kinds(settings, first, nodes=nodes)
    if len(offers) > 1:
        yield f"zones tried in this order: {some([offer.zone for offer in offers])}"
    if unpaid:
        yield f"left out, since limits.max_cost of ${settings.max_cost:.2f} pays for too little there: {some(unpaid)}"
    if first.seconds < settings.max_run_seconds:
        yield (
            f"limits.max_cost of ${settings.max_cost:.2f} shortens limits.max_run_duration from "
            f"{timedelta(seconds=settings.max_run_seconds)} to {timedelta(seconds=first.seconds)}"
        )
    if unknown := [offer.zone for offer in offers if offer.dollars_per_hour is None]:
        what = unpriced(settings, nodes=nodes, zone=unknown[0])
        where = f" in {some(unknown)}" if len(unknown) < len(offers) else ""
        yield f"the price table does not know {what}{where}; what it costs is not counted"
    dearest = max(offers, key=lambda offer: offer.dollars_per_hour or 0.0)
    if round(dearest.dollars_per_hour or 0.0, 2) > round(first.dollars_per_hour or 0.0, 2):
        shorter = f" for {timedelta(seconds=dearest.seconds)} at most" if dearest.seconds < first.seconds else ""
        yield (
            f"in {dearest.zone}, the most expensive of these zones, it is {dollars(dearest.dollars_per_hour or 0.0)}/h"
            f"{shorter}, at worst {dollars(dearest.worst_case_dollars)}"
        )
    if settings.service_account == DEFAULT_ACCOUNT:
        # https://cloud.google.com/compute/docs/instances/limit-vm-runtime: a VM that is off has no time limit.
        disk = prices.disk_dollars_per_hour(disk_gb=settings.disk_gb, region=region_of(first.zone))
        yield (
            "nodes with the project's default account cannot delete themselves; a VM that ends is then "
            f"switched off, and its disk costs {dollars(disk * prices.HOURS_PER_MONTH)} a month until hvdcloud down"
        )
    if first.dollars_per_hour is None:
        return
    yield from prices.notices()
    yield f"prices are estimates, as of {prices.table().as_of}"
    regions = dict.fromkeys(region_of(offer.zone) for offer in offers)
    if foreign := [region for region in regions if not prices.knows(region)]:
        yield (
            f"the price table has no prices of {some(foreign)}; those of {prices.table().region} are used instead "
            "and may be far off"
        )


def traffic_notices(home: str | None, regions: Iterable[str]) -> Iterator[str]:
    """What a person should know before nodes go to regions; `home`: that of their images, None: not known."""
    if home and (others := [region for region in regions if region != home]):
        yield f"outside of {home}, Google bills traffic for each node's image and its checkpoints: {some(others)}"


def _kinds(settings: Settings, offer: PaidZone, *, nodes: int) -> Iterator[str]:
    """Which nodes are what, and what each costs, where they differ."""
    alike = groups(settings, range(nodes))
    if len(alike) == 1:
        return
    for group in reversed(alike):
        each = node_dollars_per_hour(settings, group.kind, zone=offer.zone)
        price = "" if each is None else f", {dollars(each)}/h{' each' if group.nodes > 1 else ''}"
        who = "head" if 0 in group.indices else counted(group.nodes, "worker")
        yield f"{who}: {group.kind}{'' if group.kind.spot else ', on demand'}{price}"
