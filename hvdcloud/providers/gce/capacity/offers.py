"""What is available, where and for how much: the answer to `hvdcloud offers`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.credentials import google_credentials
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.capacity.availability import Availability, ask
from hvdcloud.providers.gce.money import catalog, prices
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.names import region_of
from hvdcloud.providers.gce.plan import budget
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.providers.pricing import Offer, Spot

NODE = "n1-standard-8"
RETRY_SECONDS = 3.0
"""Quotas are good to know, and not worth a long wait."""


def look_up(settings: Settings, kinds: Sequence[NodeKind]) -> tuple[Availability, list[str]]:
    """Quotas and zones for these nodes, as far as the API tells, and why they are not known.

    Args:
        settings: `project`: empty: the credentials' own.
    """
    try:
        credentials, project = google_credentials(settings.project or None)
    except HvdcloudError as error:
        return Availability(), [f"quotas are not known: {error.message}; {error.hint}"]
    asked = ask(
        ComputeClient(project=project, credentials=credentials, retry_seconds=RETRY_SECONDS),
        replace(settings, project=project),
        machines=sorted({kind.machine_type for kind in kinds}),
        gpus=sorted({kind.gpu_type for kind in kinds if kind.gpu_type}),
        doing=lambda _: f"ask project {project} for its quotas and machines",
    )
    unknown = {each.message: f"quotas are not known: {each.message}; {each.hint}" for each in asked.failures.values()}
    return asked.available, [*unknown.values()]


def kinds(settings: Settings, *, gpu: str | None, today: date, cpu_image: bool = False) -> list[NodeKind]:
    """The nodes to compare: the configured one, and others with as many GPUs or, without GPUs, as many vCPUs.

    Args:
        gpu: only nodes with this one; None: any.
        cpu_image: the image uses no GPU, so that machines without one are compared too.

    Raises UsageError: the machine type or a GPU is not in the catalogue.
    """
    machine = catalog.machine(settings.machine_type)
    own_gpu, own_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    configured = NodeKind(machine_type=settings.machine_type, gpu_type=own_gpu, gpu_count=own_count)
    wanted = catalog.gpu(gpu) if gpu else None
    found = [configured] if not catalog.check(settings.machine_type, own_gpu, own_count, today=today) else []
    if own_gpu or wanted:
        found += _with_gpus(machine, own_count or 1, today=today)
    if not wanted and (cpu_image or not own_gpu):
        sizes = [each for each in catalog.machines() if each.takes_gpus and each.vcpus >= machine.vcpus]
        least = min((each.vcpus for each in sizes), default=0)
        found += [NodeKind(machine_type=each.name) for each in sizes if each.vcpus == least]
    if own_gpu and catalog.gpu(own_gpu).gone(today):
        found.append(configured)
    return [kind for kind in dict.fromkeys(found) if wanted is None or kind.gpu_type == wanted.name]


def _with_gpus(base: catalog.Machine, count: int, *, today: date) -> Iterator[NodeKind]:
    n1 = [each for each in catalog.machines() if each.takes_gpus and each.name.startswith("n1-standard")]
    alike = base if base.takes_gpus else next((each for each in n1 if each.vcpus >= base.vcpus), n1[-1])
    for gpu in catalog.gpus():
        if count in gpu.limits:
            # The configured machine type, or one of its size, or the largest that takes that many of these GPUs.
            vcpus, memory_gb = gpu.limits[count]
            fitting = [each for each in (*n1, alike) if each.vcpus <= vcpus and each.memory_gb <= memory_gb]
            yield NodeKind(machine_type=fitting[-1].name, gpu_type=gpu.name, gpu_count=count)
        elif not gpu.limits and gpu.gone(today):
            yield NodeKind(machine_type=NODE, gpu_type=gpu.name, gpu_count=count)
    for machine in catalog.machines():
        if machine.gpu_type and machine.gpu_count == count:
            yield NodeKind(machine_type=machine.name, gpu_type=machine.gpu_type, gpu_count=count)


def offers(
    settings: Settings,
    *,
    nodes: int,
    hours: float,
    zones: Sequence[str],
    available: Availability,
    today: date,
    gpu: str | None = None,
    cpu_image: bool = False,
    image_problem: Callable[[str], str | None] = lambda _: None,
) -> list[Offer]:
    """Every kind of node in every zone, on demand and Spot; the cheapest first, those without a price last. Pure.

    Where `gce.spot` is `workers`, those with Spot VMs have their head on demand as well. Raises as `kinds`.

    Args:
        hours: that `Offer.dollars` is for.
        zones: `gce.zones`; empty: any.
        gpu, cpu_image: as for `kinds`.
        image_problem: of a GPU: why the image does not run on it; None: it does.
    """
    # A head alone is not a worker.
    own_spot: Spot = "none" if settings.spot == "workers" and nodes == 1 else settings.spot
    ways: tuple[Spot, Spot] = ("none", "workers" if own_spot == "workers" else "all")
    regions = available.regions(settings)
    own_gpus = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)

    def offered(kind: NodeKind, spot: Spot, zone: str | None) -> Offer:
        region = region_of(zone) if zone else None
        elsewhere = region is not None and regions is not None and region not in regions
        wanted = replace(settings, machine_type=kind.machine_type, spot=spot)
        wanted = replace(wanted, gpu_type=kind.gpu_type, gpu_count=kind.gpu_count)
        own = kind.machine_type == settings.machine_type and spot == own_spot and kind.gpus == own_gpus
        hourly = budget.dollars_per_hour(wanted, nodes=nodes, zone=zone)
        node_gpu = catalog.gpu(kind.gpu_type) if kind.gpu_type else None
        gone = node_gpu is not None and node_gpu.gone(today)
        short = None
        if region and available.project_quotas is not None and available.regional_quotas.get(region):
            short = available.shortfalls(wanted, nodes=nodes, region=region)
        return Offer(
            machine_type=kind.machine_type,
            gpu_type=kind.gpu_type,
            gpu_count=kind.gpu_count,
            spot=spot != "none",
            spot_nodes=spot,
            region=region,
            zone=zone,
            elsewhere=elsewhere,
            configured=own and not elsewhere and (not zone or not zones or zone in zones),
            dollars_per_hour=hourly,
            dollars=None if hourly is None else hourly * hours,
            estimate=region is None or not prices.knows(region),
            quota=None if short is None else tuple(f"{e.metric}: {e.needed} needed, {e.free:g} free" for e in short),
            switched_off=node_gpu.ends if node_gpu and gone else None,
            ends=node_gpu.ends if node_gpu and not gone else None,
            image=image_problem(node_gpu.name) if node_gpu else None,
        )

    found = []
    for kind in kinds(settings, gpu=gpu, today=today, cpu_image=cpu_image):
        # Where it is, in the catalogue's order; what the API says counts where it says something.
        there = available.zones(
            catalog.zones_with(kind.gpu_type),
            machines=[kind.machine_type],
            gpus=[kind.gpu_type] if kind.gpu_type else [],
        )
        for spot in ways:
            if spot == "all" or not catalog.machine(kind.machine_type).spot_only:
                found += [offered(kind, spot, zone) for zone in (*there,) or (None,)]
    # Sorting keeps the order of kinds and zones, which is the catalogue's.
    return sorted(found, key=lambda each: (each.dollars_per_hour is None, each.dollars_per_hour or 0.0, each.estimate))
