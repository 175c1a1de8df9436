"""What is available, where and for how much. Pure: settings, the catalogue, prices and the API's answers → offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date

from hvdcloud.errors import UsageError
from hvdcloud.providers.gce.capacity import candidates
from hvdcloud.providers.gce.capacity.candidates import Availability
from hvdcloud.providers.gce.money import catalog, prices
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.names import region_of
from hvdcloud.providers.gce.plan import budget
from hvdcloud.providers.gce.settings import Settings
from hvdcloud.providers.pricing import Offer, Spot

NODE = "n1-standard-8"


def kinds(settings: Settings, *, gpu: str | None, today: date, cpu_image: bool = False) -> list[NodeKind]:
    """The nodes to compare: the configured one, and others with as many GPUs or, without GPUs, as many vCPUs.

    Args:
        gpu: only nodes with this one; None: any.
        cpu_image: the image uses no GPU, so that machines without one are compared too.

    Raises UsageError: the machine type or a GPU is not in the catalogue.
    """
    own_gpu, own_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    configured = NodeKind(machine_type=settings.machine_type, gpu_type=own_gpu, gpu_count=own_count)
    wanted = catalog.gpu(gpu) if gpu else None
    found = [configured] if not catalog.check(settings.machine_type, own_gpu, own_count, today=today) else []
    if own_gpu or wanted:
        found += _with_gpus(catalog.machine(settings.machine_type), own_count or 1, today=today)
    if not wanted and (cpu_image or not own_gpu):
        found += _without_gpus(catalog.machine(settings.machine_type).vcpus)
    if configured not in found and own_gpu and _gone(own_gpu, today):
        found.append(configured)
    return [kind for kind in dict.fromkeys(found) if wanted is None or kind.gpu_type == wanted.name]


def _with_gpus(base: catalog.Machine, count: int, *, today: date) -> Iterator[NodeKind]:
    for gpu in catalog.gpus():
        if n1 := _n1_for(gpu, count, base):
            yield NodeKind(machine_type=n1, gpu_type=gpu.name, gpu_count=count)
        elif not gpu.limits and _gone(gpu.name, today):
            yield NodeKind(machine_type=NODE, gpu_type=gpu.name, gpu_count=count)
    for machine in catalog.machines():
        if machine.gpu_type and machine.gpu_count == count:
            yield NodeKind(machine_type=machine.name, gpu_type=machine.gpu_type, gpu_count=count)


def _without_gpus(vcpus: int) -> Iterator[NodeKind]:
    sizes = [machine for machine in catalog.machines() if machine.takes_gpus and machine.vcpus >= vcpus]
    least = min((machine.vcpus for machine in sizes), default=0)
    for machine in sizes:
        if machine.vcpus == least:
            yield NodeKind(machine_type=machine.name)


def _n1_for(gpu: catalog.Gpu, count: int, base: catalog.Machine) -> str | None:
    """The configured machine type, or one of its size, or the largest that takes that many of these GPUs."""
    if count not in gpu.limits:
        return None
    vcpus, memory_gb = gpu.limits[count]
    n1 = [machine for machine in catalog.machines() if machine.takes_gpus and machine.name.startswith("n1-standard")]
    alike = base if base.takes_gpus else next((each for each in n1 if each.vcpus >= base.vcpus), n1[-1])
    fitting = [each for each in n1 if each.vcpus <= vcpus and each.memory_gb <= memory_gb]
    return alike.name if alike.vcpus <= vcpus and alike.memory_gb <= memory_gb else fitting[-1].name


def _gone(gpu_type: str, today: date) -> bool:
    ends = catalog.gpu(gpu_type).ends
    return ends is not None and ends <= today


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
    """Every kind of node in every zone, on demand and Spot; the cheapest first, those without a price last.

    Where `gce.spot` is `workers`, those with Spot VMs have their head on demand as well. Raises as `kinds`.

    Args:
        hours: that `Offer.dollars` is for.
        zones: `gce.zones`; empty: any.
        gpu, cpu_image: as for `kinds`.
        image_problem: of a GPU: why the image does not run on it; None: it does.
    """
    allowed = set(zones) or None
    # A head alone is not a worker.
    own_spot: Spot = "none" if settings.spot == "workers" and nodes == 1 else settings.spot
    ways: tuple[Spot, Spot] = ("none", "workers" if own_spot == "workers" else "all")
    regions = candidates.allowed_regions(settings, available)
    own_gpus = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    found = []
    for kind in kinds(settings, gpu=gpu, today=today, cpu_image=cpu_image):
        for spot in ways:
            if spot != "all" and catalog.machine(kind.machine_type).spot_only:
                continue
            # The time limit follows from `max_cost`, and each offer has another.
            wanted = replace(settings, machine_type=kind.machine_type, spot=spot, max_cost=None)
            wanted = replace(wanted, gpu_type=kind.gpu_type, gpu_count=kind.gpu_count)
            own = kind.machine_type == settings.machine_type and spot == own_spot and kind.gpus == own_gpus
            ends = catalog.gpu(kind.gpu_type).ends if kind.gpu_type else None
            image = image_problem(kind.gpu_type) if kind.gpu_type else None
            prices_by_region: dict[str | None, float | None] = {}
            for zone in _zones(kind, available) or [None]:
                region = region_of(zone) if zone else None
                elsewhere = region is not None and regions is not None and region not in regions
                if region not in prices_by_region:
                    prices_by_region[region] = budget.dollars_per_hour(wanted, nodes=nodes, zone=zone)
                hourly = prices_by_region[region]
                found.append(
                    Offer(
                        machine_type=kind.machine_type,
                        gpu_type=kind.gpu_type,
                        gpu_count=kind.gpu_count,
                        spot=spot != "none",
                        spot_nodes=spot,
                        region=region,
                        zone=zone,
                        elsewhere=elsewhere,
                        configured=own and not elsewhere and (zone is None or allowed is None or zone in allowed),
                        dollars_per_hour=hourly,
                        dollars=None if hourly is None else hourly * hours,
                        estimate=region is None or not prices.knows(region),
                        quota=_quota(wanted, nodes=nodes, region=region, available=available),
                        switched_off=ends if ends and ends <= today else None,
                        ends=ends if ends and ends > today else None,
                        image=image,
                    )
                )
    # Sorting keeps the order of kinds and zones, which is the catalogue's.
    return sorted(
        found, key=lambda offer: (offer.dollars_per_hour is None, offer.dollars_per_hour or 0.0, offer.estimate)
    )


def _zones(kind: NodeKind, available: Availability) -> list[str | None]:
    """Where it is, in the catalogue's order; what the API says counts where it says something."""
    listed = catalog.zones_with(kind.gpu_type)
    return [*available.zones(listed, machines=[kind.machine_type], gpus=[kind.gpu_type] if kind.gpu_type else [])]


def _quota(wanted: Settings, *, nodes: int, region: str | None, available: Availability) -> tuple[str, ...] | None:
    if region is None or available.project_quotas is None or not available.regional_quotas.get(region):
        return None
    try:
        short = available.shortfalls(wanted, nodes=nodes, region=region)
    except UsageError:  # limits.max_run_duration is not possible, which has nothing to do with this; `up` says so.
        return None
    return tuple(f"{each.metric}: {each.needed} needed, {max(0.0, each.limit - each.usage):g} free" for each in short)
