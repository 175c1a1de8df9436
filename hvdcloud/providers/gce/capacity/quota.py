"""Whether the quotas have room for a cluster. Pure: settings and the API's answers → what is short.

Where the API says nothing of a metric, nothing is short: `up` then finds out by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.plan.budget import allowed_seconds
from hvdcloud.providers.gce.settings import Group, Settings, groups

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
    """What all nodes together take, of the region's quotas and of the project's; each quota once.

    Raises:
        UsageError: the machine type or the GPU is not in the catalogue; or as `allowed_seconds`.
    """
    found: dict[Need, int] = {}
    for group in groups(settings, range(nodes)):
        for need in _needs(settings, group, nodes=nodes):
            quota = replace(need, amount=0)
            found[quota] = found.get(quota, 0) + need.amount
    return [replace(need, amount=amount) for need, amount in found.items()]


def _needs(settings: Settings, group: Group, *, nodes: int) -> list[Need]:
    """What a group of like nodes needs; `nodes`: of the whole cluster."""
    kind, alike = group.kind, group.nodes
    machine = catalog.machine(kind.machine_type)
    gpu_type, gpu_count = kind.gpus
    vcpus, gpus = alike * machine.vcpus, alike * gpu_count
    found = [
        Need(metric="INSTANCES", amount=alike),
        # pd-balanced counts as SSD.
        Need(metric="SSD_TOTAL_GB", amount=alike * settings.disk_gb),
        Need(metric="CPUS_ALL_REGIONS", amount=vcpus, regional=False),
    ]
    if machine.cpu_quota:
        spot = machine.spot_cpu_quota if kind.spot else None
        found.append(Need(metric=machine.cpu_quota, amount=vcpus, preemptible=spot))
    if settings.needs_external_ip:
        found.append(Need(metric="IN_USE_ADDRESSES", amount=alike))
    if gpu_type:
        gpu = catalog.gpu(gpu_type)
        found.append(Need(metric="GPUS_ALL_REGIONS", amount=gpus, regional=False))
        either = not kind.spot and allowed_seconds(settings, nodes=nodes) <= _SHORT_LIVED_SECONDS
        preemptible = gpu.spot_quota if kind.spot or either else None
        if gpu.quota:
            found.append(Need(metric=gpu.quota, amount=gpus, preemptible=preemptible, either=either))
        elif kind.spot and gpu.spot_quota:
            found.append(Need(metric=gpu.spot_quota, amount=gpus))
    return found


def taken(
    needed: Iterable[Need], *, regional_quotas: Sequence[Mapping[str, Any]], project_quotas: Sequence[Mapping[str, Any]]
) -> list[Need]:
    """The needs by the quotas that they are taken from: each once, where it was granted, and in the order of `needed`.

    Args:
        regional_quotas: `quotas` of `regions.get`, each `{metric, limit, usage}`; empty if the API left them out.
        project_quotas: `quotas` of `projects.get`.
    """
    known = {
        True: {str(each["metric"]): each for each in regional_quotas},
        False: {str(each["metric"]): each for each in project_quotas},
    }
    # Those without a choice first: what may come from either of two takes what they leave.
    amounts: Counter[tuple[str, bool]] = Counter()
    chosen: dict[Need, tuple[str, bool]] = {}
    every = list(needed)
    for need in sorted(every, key=lambda need: need.either):
        quotas = known[need.regional]
        metric = need.metric
        granted = need.preemptible if need.preemptible and _limit(need.preemptible, quotas) > 0 else None
        if granted and not need.either:
            metric = granted
        elif granted:
            total = amounts[granted, need.regional] + need.amount
            own = amounts[metric, need.regional] + need.amount
            if not _fits(own, quotas.get(metric)) and _fits(total, quotas.get(granted)):
                metric = granted
        amounts[metric, need.regional] += need.amount
        chosen[need] = (metric, need.regional)
    return [
        Need(metric=metric, amount=amounts[metric, regional], regional=regional)
        for metric, regional in dict.fromkeys(chosen[need] for need in every)
    ]


def shortfalls(
    needed: Iterable[Need], *, regional_quotas: Sequence[Mapping[str, Any]], project_quotas: Sequence[Mapping[str, Any]]
) -> list[Shortfall]:
    """The needs without room; arguments as for `taken`."""
    found = []
    for need in taken(needed, regional_quotas=regional_quotas, project_quotas=project_quotas):
        quotas = regional_quotas if need.regional else project_quotas
        quota = next((each for each in quotas if each["metric"] == need.metric), None)
        if quota is not None and not _fits(need.amount, quota):
            limit, usage = float(quota.get("limit", 0)), float(quota.get("usage", 0))
            found.append(
                Shortfall(metric=need.metric, needed=need.amount, limit=limit, usage=usage, regional=need.regional)
            )
    return found


def _fits(amount: int, quota: Mapping[str, Any] | None) -> bool:
    """Also where the API says nothing of it."""
    return quota is None or float(quota.get("usage", 0)) + amount <= float(quota.get("limit", 0))


def _limit(metric: str, quotas: Mapping[str, Mapping[str, Any]]) -> float:
    return float(quotas.get(metric, {}).get("limit", 0))
