"""Whether the quotas of GPUs and of the project have room for a cluster. Pure: settings and the API's answers.

Only what is often too small is looked at beforehand. Of other quotas, and where the API says nothing of a metric,
Compute Engine itself says within a second what is short, and the next region is tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A quota without room for the cluster."""

    metric: str
    needed: int
    limit: float
    usage: float
    regional: bool
    """In `regions.get`; else in `projects.get`."""

    @property
    def free(self) -> float:
        """What is left of it."""
        return max(0.0, self.limit - self.usage)


def shortfalls(
    settings: Settings,
    *,
    nodes: int,
    regional_quotas: Sequence[Mapping[str, Any]],
    project_quotas: Sequence[Mapping[str, Any]],
) -> list[Shortfall]:
    """The quotas without room for all nodes together.

    Args:
        regional_quotas: `quotas` of `regions.get`, each `{metric, limit, usage}`; empty if the API left them out.
        project_quotas: `quotas` of `projects.get`.

    Raises:
        UsageError: the machine type or the GPU is not in the catalogue.
    """
    gpu_type, gpu_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    found = [_short(project_quotas, "CPUS_ALL_REGIONS", nodes * catalog.machine(settings.machine_type).vcpus)]
    if gpu_type:
        gpu, gpus = catalog.gpu(gpu_type), nodes * gpu_count
        found.append(_short(project_quotas, "GPUS_ALL_REGIONS", gpus))
        # Spot VMs, and others that live a week at most, may draw from the preemptible quota too:
        # https://cloud.google.com/compute/docs/instances/limit-vm-runtime#quota
        held = {quota["metric"] for quota in regional_quotas}
        metrics = [
            each for each in (gpu.quota, gpu.spot_quota) if each in held and (gpu.quota or settings.spot != "none")
        ]
        short = [
            each for metric in metrics if metric and (each := _short(regional_quotas, metric, gpus, regional=True))
        ]
        together = settings.spot == "workers" and sum(each.free for each in short) >= gpus
        if short and len(short) == len(metrics) and not together:
            found.append(short[0])
    return [each for each in found if each]


def _short(
    quotas: Sequence[Mapping[str, Any]], metric: str, needed: int, *, regional: bool = False
) -> Shortfall | None:
    for quota in quotas:
        limit, usage = float(quota.get("limit", 0)), float(quota.get("usage", 0))
        if quota["metric"] == metric and limit - usage < needed:
            return Shortfall(metric=metric, needed=needed, limit=limit, usage=usage, regional=regional)
    return None
