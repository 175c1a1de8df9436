"""Whether the quotas have room for a cluster. Pure: settings and the API's answers → what is short.

Where the API says nothing of a metric, nothing is short: `up` then finds out by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.providers.gce import catalog
from hvdcloud.providers.gce.plan import Settings, allowed_seconds, external_ip_needed

# A VM with GPUs that is deleted by itself within this time may draw from the preemptible quota too:
# https://cloud.google.com/compute/docs/instances/limit-vm-runtime#quota
_SHORT_LIVED_SECONDS = 7 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a cluster takes of one quota."""

    metric: str
    amount: int
    preemptible: str | None = None
    """The quota that Spot VMs take from, where one was granted."""
    either: bool = False
    """Room in one of the two is enough."""
    regional: bool = True
    """In `regions.get`; else in `projects.get`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A quota without room for the cluster."""

    metric: str
    needed: int
    limit: float
    usage: float
    regional: bool


def needs(settings: Settings, *, nodes: int) -> list[Need]:
    """What all nodes together take, of the region's quotas and of the project's.

    Raises:
        UsageError: the machine type or the GPU is not in the catalogue; or as `allowed_seconds`.
    """
    machine = catalog.machine(settings.machine_type)
    gpu_type, gpu_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    vcpus, gpus = nodes * machine.vcpus, nodes * gpu_count
    found = [
        Need(metric="INSTANCES", amount=nodes),
        # pd-balanced counts as SSD.
        Need(metric="SSD_TOTAL_GB", amount=nodes * settings.disk_gb),
        Need(metric="CPUS_ALL_REGIONS", amount=vcpus, regional=False),
    ]
    if machine.cpu_quota:
        spot = machine.spot_cpu_quota if settings.spot else None
        found.append(Need(metric=machine.cpu_quota, amount=vcpus, preemptible=spot))
    if external_ip_needed(settings):
        found.append(Need(metric="IN_USE_ADDRESSES", amount=nodes))
    if gpu_type:
        gpu = catalog.gpu(gpu_type)
        found.append(Need(metric="GPUS_ALL_REGIONS", amount=gpus, regional=False))
        either = not settings.spot and allowed_seconds(settings, nodes=nodes) <= _SHORT_LIVED_SECONDS
        preemptible = gpu.spot_quota if settings.spot or either else None
        if gpu.quota:
            found.append(Need(metric=gpu.quota, amount=gpus, preemptible=preemptible, either=either))
        elif settings.spot and gpu.spot_quota:
            found.append(Need(metric=gpu.spot_quota, amount=gpus))
    return found


def shortfalls(
    needed: Iterable[Need],
    *,
    regional_quotas: Sequence[Mapping[str, Any]],
    project_quotas: Sequence[Mapping[str, Any]],
) -> list[Shortfall]:
    """The needs without room.

    Args:
        regional_quotas: `quotas` of `regions.get`, each `{metric, limit, usage}`; empty if the API left them out.
        project_quotas: `quotas` of `projects.get`.
    """
    found = []
    for need in needed:
        quotas = {str(each["metric"]): each for each in (regional_quotas if need.regional else project_quotas)}
        granted = need.preemptible if need.preemptible and _limit(need.preemptible, quotas) > 0 else None
        short = _short(need, need.metric, quotas)
        if granted and need.either and _short(need, granted, quotas) is None:
            short = None
        elif granted and not need.either:
            short = _short(need, granted, quotas)
        if short:
            found.append(short)
    return found


def _short(need: Need, metric: str, quotas: Mapping[str, Mapping[str, Any]]) -> Shortfall | None:
    quota = quotas.get(metric)
    if quota is None:
        return None
    limit, usage = float(quota.get("limit", 0)), float(quota.get("usage", 0))
    if usage + need.amount <= limit:
        return None
    return Shortfall(metric=metric, needed=need.amount, limit=limit, usage=usage, regional=need.regional)


def _limit(metric: str, quotas: Mapping[str, Mapping[str, Any]]) -> float:
    return float(quotas.get(metric, {}).get("limit", 0))
