"""Whether the quotas of GPUs and of the project have room for a cluster. Pure: settings and the API's answers.

Only what is often too small is looked at beforehand. Of other quotas, and where the API says nothing of a metric,
Compute Engine itself says within a second what is short, and the next region is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Another quota in which room is enough as well."""
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


def _needs(settings: Settings, group: Group, *, nodes: int) -> Iterator[Need]:
    """What a group of like nodes needs; `nodes`: of the whole cluster."""
    kind = group.kind
    gpu_type, gpu_count = kind.gpus
    vcpus, gpus = group.nodes * catalog.machine(kind.machine_type).vcpus, group.nodes * gpu_count
    yield Need(metric="CPUS_ALL_REGIONS", amount=vcpus, regional=False)
    if gpu_type:
        gpu = catalog.gpu(gpu_type)
        yield Need(metric="GPUS_ALL_REGIONS", amount=gpus, regional=False)
        preemptible = kind.spot or allowed_seconds(settings, nodes=nodes) <= _SHORT_LIVED_SECONDS
        if gpu.quota:
            yield Need(metric=gpu.quota, amount=gpus, preemptible=gpu.spot_quota if preemptible else None)
        elif kind.spot and gpu.spot_quota:
            yield Need(metric=gpu.spot_quota, amount=gpus)


def shortfalls(
    needed: Iterable[Need], *, regional_quotas: Sequence[Mapping[str, Any]], project_quotas: Sequence[Mapping[str, Any]]
) -> list[Shortfall]:
    """The needs without room.

    Args:
        regional_quotas: `quotas` of `regions.get`, each `{metric, limit, usage}`; empty if the API left them out.
        project_quotas: `quotas` of `projects.get`.
    """
    found = []
    for need in needed:
        quotas = {str(each["metric"]): each for each in (regional_quotas if need.regional else project_quotas)}
        quota = quotas.get(need.metric)
        if quota is None or _free(quota) >= need.amount:
            continue
        other = quotas.get(need.preemptible or "")
        if other is not None and _free(other) >= need.amount:
            continue
        limit, usage = float(quota.get("limit", 0)), float(quota.get("usage", 0))
        found.append(
            Shortfall(metric=need.metric, needed=need.amount, limit=limit, usage=usage, regional=need.regional)
        )
    return found


def _free(quota: Mapping[str, Any]) -> float:
    return float(quota.get("limit", 0)) - float(quota.get("usage", 0))
