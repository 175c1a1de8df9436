"""How long nodes may live, what they cost meanwhile, and which zones `limits.max_cost` pays for. Pure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.money import prices
from hvdcloud.providers.gce.money.catalog import NodeKind, machine
from hvdcloud.providers.gce.money.costs import LATE_SECONDS
from hvdcloud.providers.gce.names import region_of
from hvdcloud.providers.gce.settings import DEFAULT_ACCOUNT, Settings, groups, kind_of
from hvdcloud.runs.retry import Within
from hvdcloud.units import counted, dollars, some

# https://cloud.google.com/compute/docs/instances/limit-vm-runtime: 30 s to 120 days, up to 30 s late.
MIN_RUN_SECONDS = 30
MAX_RUN_SECONDS = 120 * 86400
FLEX_START_SECONDS = (600, 7 * 86400)
"""The same with flex-start: https://docs.cloud.google.com/compute/docs/instance-groups/about-resize-requests-mig"""
START_SECONDS = 60
"""Allowed for, from a VM's creation until it runs: only then its time limit begins to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaidZone:
    """Some nodes in one zone."""

    zone: str
    seconds: int
    """After which Compute Engine deletes them."""
    dollars_per_hour: float | None
    """None: the price table does not know them."""
    worst_case_dollars: float | None
    """If only their time limit ends them; None: as above."""


def node_dollars_per_hour(settings: Settings, kind: NodeKind, *, zone: str | None = None) -> float | None:
    """The estimate for one node with its disks and address, in a zone or in the price table's own region.

    None: the price table does not know it.
    """
    region, external = region_of(zone) if zone else None, settings.needs_external_ip
    with contextlib.suppress(prices.PriceUnknownError):
        return prices.node_dollars_per_hour(kind, disk_gb=settings.disk_gb, external_ip=external, region=region)
    return None


def dollars_per_hour(settings: Settings, nodes: Iterable[int], *, zone: str | None = None) -> float | None:
    """As `node_dollars_per_hour`, for nodes of these numbers together."""
    total = 0.0
    for group in groups(settings, nodes):
        price = node_dollars_per_hour(settings, group.kind, zone=zone)
        if price is None:
            return None
        total += group.nodes * price
    return total


def allowed_seconds(settings: Settings, nodes: Sequence[int], *, zone: str | None = None, spent: float = 0.0) -> int:
    """How long nodes may live: `limits.max_run_duration`, or less where `limits.max_cost` buys less.

    Args:
        nodes: the numbers of those that are to be made.
        zone: None: by the prices of the table's own region.
        spent: dollars of `limits.max_cost` that other nodes of the cluster may cost.

    Raises:
        UsageError: outside of what Compute Engine takes, or the money buys less than that.
    """
    least, most = FLEX_START_SECONDS if settings.flex_start else (MIN_RUN_SECONDS, MAX_RUN_SECONDS)
    if not least <= settings.max_run_seconds <= most:
        takes = "10 minutes to 7 days with gce.provisioning: flex-start" if settings.flex_start else "30 s to 120 days"
        message = f"limits.max_run_duration of {settings.max_run_seconds} s: Compute Engine takes {takes}"
        raise UsageError(message, hint="write limits.max_run_duration: 12h")
    if settings.max_cost is None:
        return settings.max_run_seconds
    hourly, left = dollars_per_hour(settings, nodes, zone=zone), settings.max_cost - spent
    if hourly is None:
        raise UsageError(
            f"limits.max_cost cannot be kept: the price table does not know {kind_of(settings, nodes[-1])}",
            hint="hvdcloud offers --refresh may get its price; or leave limits.max_cost out, and set "
            "limits.max_run_duration",
        )
    bought = math.floor(left / hourly * 3600) - START_SECONDS - LATE_SECONDS
    if bought < least:
        short = "ten minutes" if settings.flex_start else "two minutes"
        leaves = f" leaves ${max(0.0, left):.2f} beside what the other nodes may cost, which" if spent else ""
        where = f" in {zone}" if zone else ""
        raise UsageError(
            f"limits.max_cost of ${settings.max_cost:.2f}{leaves} is less than {short} of "
            f"{counted(len(nodes), 'node')} at ${hourly:.2f}/h in all{where}",
            hint="raise limits.max_cost, or take fewer or smaller nodes",
        )
    return min(settings.max_run_seconds, bought)


def paid_zone(settings: Settings, nodes: Sequence[int], *, zone: str, spent: float = 0.0) -> PaidZone:
    """What nodes cost in a zone. Arguments and errors are those of `allowed_seconds`."""
    seconds = allowed_seconds(settings, nodes, zone=zone, spent=spent)
    hourly = dollars_per_hour(settings, nodes, zone=zone)
    # From their creation, so more than the one minute that is billed at least, until Compute Engine has been as late as
    # it may be.
    worst_case = None if hourly is None else hourly * (START_SECONDS + seconds + LATE_SECONDS) / 3600
    return PaidZone(zone=zone, seconds=seconds, dollars_per_hour=hourly, worst_case_dollars=worst_case)


def limited(settings: Settings, within: Within | None, *, now: datetime) -> Settings:
    """The settings of one attempt of a run: `limits` without what earlier attempts have taken of them."""
    if within is None:
        return settings
    # The limit of a VM counts only from when it runs.
    seconds = math.floor((within.ends - now).total_seconds()) - START_SECONDS
    return replace(settings, max_run_seconds=min(settings.max_run_seconds, seconds), max_cost=within.max_dollars)


def paid_zones(settings: Settings, zones: Sequence[str], *, nodes: int) -> list[PaidZone]:
    """The zones that `limits.max_cost` pays for, in order. Raises UsageError: it pays for none."""
    found: list[PaidZone] = []
    refused: list[UsageError] = []
    for zone in zones:
        try:
            found.append(paid_zone(settings, range(nodes), zone=zone))
        except UsageError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return found


def notices(settings: Settings, offers: Sequence[PaidZone], *, nodes: int) -> Iterator[str]:
    """What a person should know before these zones are tried in this order."""
    first = offers[0]
    alike = groups(settings, range(nodes))
    for group in reversed(alike) if len(alike) > 1 else ():
        each_costs = node_dollars_per_hour(settings, group.kind, zone=first.zone)
        price = "price not known" if each_costs is None else f"{dollars(each_costs)}/h"
        who = "head" if 0 in group.indices else counted(group.nodes, "worker")
        each = " each" if group.nodes > 1 else ""
        yield f"{who}: {group.kind}{', on demand' if group.kind.provisioning == 'standard' else ''}, {price}{each}"
    if first.dollars_per_hour is None:
        yield f"the price table does not know {alike[0].kind}; hvdcloud offers --refresh may get its price"
    if settings.flex_start:
        yield "flex-start: the wait for room costs nothing; prices are those on demand, of which some are less then"
    if nodes > 1 and (nics := machine(settings.machine_type).nics) > 1:
        yield (
            f"nodes exchange gradients by one network interface, 200 of the {nics * 200} Gbit/s that "
            f"{settings.machine_type} can have: more than one node may gain little"
        )
    if len(offers) > 1:
        yield f"zones tried in this order: {some([offer.zone for offer in offers])}"
    if first.seconds < settings.max_run_seconds:
        yield (
            f"limits.max_cost of ${settings.max_cost:.2f} shortens limits.max_run_duration from "
            f"{timedelta(seconds=settings.max_run_seconds)} to {timedelta(seconds=first.seconds)}"
        )
    if settings.service_account == DEFAULT_ACCOUNT:
        # https://cloud.google.com/compute/docs/instances/limit-vm-runtime: a VM that is off has no time limit.
        disk = prices.disk_dollars_per_hour(disk_gb=settings.disk_gb, region=region_of(first.zone))
        yield (
            "nodes with the project's default account cannot delete themselves; a VM that ends is then "
            f"switched off, and its disk costs {dollars(disk * prices.HOURS_PER_MONTH)} a month until hvdcloud down"
        )
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
