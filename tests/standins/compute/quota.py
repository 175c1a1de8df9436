"""Quotas: what a project may have at once, per region and everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tests.standins.compute.catalogue import ACCELERATORS, REGION_OF
from tests.standins.compute.rules import Shape

# Generous: a test that is about quotas sets its own.
REGIONAL: dict[str, float] = {
    "CPUS": 8000,
    "A2_CPUS": 1000,
    "E2_CPUS": 1000,
    "PREEMPTIBLE_CPUS": 0,
    "DISKS_TOTAL_GB": 204800,
    "SSD_TOTAL_GB": 102400,
    "HDB_TOTAL_GB": 102400,
    "IN_USE_ADDRESSES": 2300,
    "INSTANCES": 6000,
    **{one.metric: 1024 for one in ACCELERATORS.values() if one.metric},
    **{f"PREEMPTIBLE_{one.metric}": 0 for one in ACCELERATORS.values() if one.metric},
    "PREEMPTIBLE_NVIDIA_H100_GPUS": 0,
}
PROJECT: dict[str, float] = {
    "GPUS_ALL_REGIONS": 2048,
    "CPUS_ALL_REGIONS": 20000,
    "FIREWALLS": 500,
    "NETWORKS": 50,
}
_DISKS = {"pd-standard": "DISKS_TOTAL_GB", "hyperdisk-balanced": "HDB_TOTAL_GB"}
# (region or None for the project, metric)
Key = tuple[str | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """Which quota doesn't suffice."""

    metric: str
    region: str | None
    limit: float

    def error(self) -> dict[str, Any]:
        """As one of an operation's errors."""
        place = f"in region {self.region}" if self.region else "globally"
        return {
            "code": "QUOTA_EXCEEDED",
            "message": f"Quota '{self.metric}' exceeded.  Limit: {float(self.limit)} {place}.",
            "errorDetails": [
                {
                    "quotaInfo": {
                        "metricName": f"compute.googleapis.com/{self.metric.lower()}",
                        "limitName": f"{self.metric.replace('_', '-')}-per-project"
                        + ("-region" if self.region else ""),
                        "dimensions": {"region": self.region} if self.region else {"global": "global"},
                        "limit": float(self.limit),
                    }
                }
            ],
        }


class Quotas:
    """The limits of one project; what is used is counted when it's asked for."""

    def __init__(self) -> None:
        self._limits: dict[Key, float] = {}

    def set(self, metric: str, limit: float, *, region: str | None = None) -> None:
        """A limit; one of a region, or of the whole project."""
        self._limits[region, metric] = limit

    def reset(self) -> None:
        self._limits.clear()

    def limit(self, region: str | None, metric: str) -> float | None:
        return self._limits.get((region, metric), (REGIONAL if region else PROJECT).get(metric))

    def plain(self, region: str | None, used: Counter[Key]) -> list[dict[str, Any]]:
        """The `quotas` of a region or the project."""
        metrics = {*(REGIONAL if region else PROJECT), *(metric for place, metric in self._limits if place == region)}
        return [
            {"metric": metric, "limit": float(self.limit(region, metric) or 0), "usage": float(used[region, metric])}
            for metric in sorted(metrics)
        ]

    def needs(self, shape: Shape, zone: str, *, running: bool = True) -> Counter[Key]:
        """What one instance takes."""
        region = REGION_OF[zone]
        needs: Counter[Key] = Counter({(region, "INSTANCES"): 1})
        for kind, size in shape.disks:
            needs[region, _DISKS.get(kind, "SSD_TOTAL_GB")] += size
        if not running or shape.reserved:
            return needs
        family = {"a2": "A2_CPUS", "e2": "E2_CPUS"}.get(shape.machine.family, "CPUS")
        needs[self._spot(region, family, "PREEMPTIBLE_CPUS", spot=shape.spot or shape.flex)] += shape.machine.cpus
        needs[None, "CPUS_ALL_REGIONS"] += shape.machine.cpus
        if shape.external:
            needs[region, "IN_USE_ADDRESSES"] += 1
        if shape.gpus:
            name, count = shape.gpus
            metric = ACCELERATORS[name].metric
            needs[None, "GPUS_ALL_REGIONS"] += count
            if metric:
                needs[self._spot(region, metric, f"PREEMPTIBLE_{metric}", spot=shape.spot or shape.flex)] += count
        return needs

    def _spot(self, region: str, metric: str, preemptible: str, *, spot: bool) -> Key:
        """Spot and flex-start draw from their own quota if one was granted, else from the ordinary one."""
        return (region, preemptible if spot and self.limit(region, preemptible) else metric)

    def room(self, needs: Counter[Key], used: Counter[Key], count: int) -> tuple[int, Exceeded | None]:
        """How many of `count` fit, and what prevents the next."""
        fit, exceeded = count, None
        for (region, metric), need in needs.items():
            limit = self.limit(region, metric)
            if limit is None:
                continue
            most = max(0, int((limit - used[region, metric]) // need))
            if most < fit:
                fit, exceeded = most, Exceeded(metric=metric, region=region, limit=limit)
        return fit, exceeded


def total(parts: Iterable[Counter[Key]]) -> Counter[Key]:
    result: Counter[Key] = Counter()
    for part in parts:
        result.update(part)
    return result
