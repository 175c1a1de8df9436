"""What is available, where and for how much: the answer to `hvdcloud offers`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.registry_hosts import registry_region
from hvdcloud.providers.gce.api.client import connect_client
from hvdcloud.providers.gce.capacity.places import Available, ask
from hvdcloud.providers.gce.money import catalog, prices
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.names import region_of
from hvdcloud.providers.gce.plan import budget
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.providers.pricing import Offer, OffersResult

if TYPE_CHECKING:
    from hvdcloud.config.gce import Provisioning
    from hvdcloud.config.model import Config

RETRY_SECONDS = 3.0
"""Quotas are good to know, and not worth a long wait."""
N1 = "n1-standard-8"
"""To which GPUs are attached, unless another N1 machine type is configured."""


def find_offers(
    config: Config, settings: Settings, *, hours: float, gpu: str | None, notices: Sequence[str]
) -> OffersResult:
    """By the catalogue, the price table and, where it answers, the API.

    Args:
        settings: `project`: empty: the credentials' own.
        notices: what else is to be said.
    """
    today = datetime.now(timezone.utc).date()
    wrong = catalog.problem(settings.machine_type, settings.gpu_type, settings.gpu_count, today=today)
    compared = kinds(settings, gpu=gpu, today=today, cpu_image=config.image.device == "cpu")
    available, unknown = Available(), None
    try:
        client = connect_client(project=settings.project or None, retry_seconds=RETRY_SECONDS)
        available = ask(client, replace(settings, project=client.project))
    except HvdcloudError as error:
        unknown = error
    found: list[Offer] = []
    for kind in compared:
        found += _offers(settings, kind, config, hours=hours, available=available)
    # Sorting keeps the order of kinds and zones, which is the catalogue's.
    found.sort(key=lambda each: (each.dollars_per_hour is None, each.dollars_per_hour or 0.0, each.estimate))
    region = prices.table().region
    instead = f"~ the price is that of {region}, since this region's is not known; hvdcloud offers --refresh gets them"
    near = dict.fromkeys(each.region for each in found if each.region)
    return OffersResult(
        nodes=config.nodes,
        hours=hours,
        prices_as_of=prices.table().as_of,
        offers=tuple(found),
        notices=(
            *([f"hvdcloud.yaml: {wrong.message}; {wrong.hint}"] if wrong else []),
            *([f"quotas are not known: {unknown.message}; {unknown.hint}"] if unknown else []),
            *notices,
            *([instead] if any(each.region and each.estimate and each.dollars for each in found) else []),
            *budget.traffic_notices(registry_region(config.image.repository or ""), near),
        ),
    )


def kinds(settings: Settings, *, gpu: str | None, today: date, cpu_image: bool = False) -> list[NodeKind]:
    """The nodes to compare: the configured one, and others with as many GPUs, or the least number that `gpu` comes
    in; without GPUs, with as many vCPUs.

    Args:
        gpu: only nodes with this one; None: any.
        cpu_image: the image uses no GPU, so that machines without one are compared too.

    Raises UsageError: the machine type or a GPU is not in the catalogue.
    """
    machine = catalog.machine(settings.machine_type)
    own, count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    wanted = catalog.gpu(gpu).name if gpu else None
    n1 = machine if machine.takes_gpus else catalog.machine(N1)
    found = [NodeKind(machine_type=machine.name, gpu_type=own, gpu_count=count)]
    if own or wanted:
        count = count or 1
        # An H200 comes in eights only.
        of_wanted = [each.gpu_count for each in catalog.machines().values() if wanted and each.gpu_type == wanted]
        count = min(of_wanted) if of_wanted and count not in of_wanted else count
        found += [NodeKind(machine_type=n1.name, gpu_type=each, gpu_count=count) for each in catalog.gpus()]
        alike = [each for each in catalog.machines().values() if each.gpu_count == count]
        found += [NodeKind(machine_type=each.name, gpu_type=each.gpu_type, gpu_count=count) for each in alike]
    if cpu_image or not own:
        sizes = [each for each in catalog.machines().values() if each.takes_gpus and each.vcpus == n1.vcpus]
        found += [NodeKind(machine_type=each.name) for each in sizes]
    return [
        kind
        for kind in dict.fromkeys(found)
        if wanted in (None, kind.gpu_type)
        and not catalog.problem(kind.machine_type, kind.gpu_type, kind.gpu_count, today=today)
    ]


def _offers(settings: Settings, kind: NodeKind, config: Config, *, hours: float, available: Available) -> list[Offer]:
    """Nodes of one kind in every zone where `gce.subnetwork` is, in all ways in which they can be had. Pure.

    Args:
        hours: that `Offer.dollars` is for.
    """
    nodes, zones = config.nodes, config.gce.zones
    own_gpus = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    own = config.provider == "gce" and kind.machine_type == settings.machine_type and kind.gpus == own_gpus

    def offered(way: Provisioning, zone: str | None) -> Offer:
        region = region_of(zone) if zone else None
        wanted = replace(settings, machine_type=kind.machine_type, provisioning=way)
        wanted = replace(wanted, gpu_type=kind.gpu_type, gpu_count=kind.gpu_count)
        hourly = budget.dollars_per_hour(wanted, range(nodes), zone=zone)
        known = region if available.project_quotas is not None else None
        return Offer(
            machine_type=kind.machine_type,
            gpu_type=kind.gpu_type,
            gpu_count=kind.gpu_count,
            provisioning=way,
            region=region,
            zone=zone,
            configured=own and way == settings.provisioning and (not zone or not zones or zone in zones),
            dollars_per_hour=hourly,
            dollars=None if hourly is None else hourly * hours,
            at_most=way in ("flex-start", "reservation"),
            estimate=region is None or not prices.knows(region),
            quota=None if known is None else available.short(wanted, nodes=nodes, region=known),
            ends=catalog.gpu(kind.gpu_type).ends if kind.gpu_type else None,
        )

    there: list[str | None] = [*available.near(catalog.zones_with(kind.gpu_type), settings)]
    machine = catalog.machine(kind.machine_type)
    ways: list[Provisioning] = ["spot"] if machine.spot_only else ["standard", "spot", "reservation"]
    if machine.flex:
        ways.append("flex-start")
    return [offered(spot, zone) for spot in ways for zone in (there or [None])]
