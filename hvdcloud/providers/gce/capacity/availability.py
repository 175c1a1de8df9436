"""Which zones have what nodes need, and which regions have quota for it: for checks, plans and `offers`.

What the API does not tell, or only in part, is taken to be as it should: `up` finds out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.errors import ApiError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.names import continent, last_segment, region_of, zone_of
from hvdcloud.providers.gce.plan.budget import dollars_per_hour
from hvdcloud.providers.gce.plan.request import network_path, same_path
from hvdcloud.providers.gce.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """A quota without room for the cluster."""

    metric: str
    needed: int
    limit: float
    usage: float
    regional: bool
    """Of a region; else of the project."""

    @property
    def free(self) -> float:
        """What is left of it."""
        return max(0.0, self.limit - self.usage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """What the API says of places and quotas."""

    places: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Machine type or GPU → the zones that have it, as far as that is known."""
    subnetwork_regions: Collection[str] | None = None
    """The regions that have the subnetwork whose name `gce.subnetwork` is; None: not known."""
    regional_quotas: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Region → `quotas` of `regions.get`."""
    project_quotas: Sequence[Mapping[str, Any]] | None = None
    """`quotas` of `projects.get`; None: not known."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """By question: project, regions, machine_types, gpu_types, subnetworks, and others; None: not answered."""
    failures: Mapping[str, HvdcloudError] = field(default_factory=dict)
    """Why questions were not answered."""

    def lacks(self, zone: str, needed: Sequence[str]) -> str | None:
        """Which of these machine types and GPUs a zone does not have; None: it has all, as far as is known."""
        return next((what for what in needed if zone not in self.places.get(what, [zone])), None)

    def zones(self, listed: Sequence[str], needed: Sequence[str]) -> list[str]:
        """The zones that have all of these: those of `listed` in their order, then others that the API names."""
        told = [set(self.places[what]) for what in needed if what in self.places]
        others = set.intersection(*told) - set(listed) if told else set()
        return [*(zone for zone in listed if not self.lacks(zone, needed)), *sorted(others)]

    def shortfalls(self, settings: Settings, *, nodes: int, region: str) -> list[Shortfall]:
        """The quotas of GPUs and of the project without room for a whole cluster in this region.

        Of other quotas, and where the API says nothing of a metric, Compute Engine itself says within a second what is
        short, and the next region is tried.
        """
        project, regional = _by_metric(self.project_quotas or ()), _by_metric(self.regional_quotas.get(region, ()))
        gpu_type, gpu_count = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
        cpus, gpus = nodes * catalog.machine(settings.machine_type).vcpus, nodes * gpu_count
        wanted = [("CPUS_ALL_REGIONS", cpus), *([("GPUS_ALL_REGIONS", gpus)] if gpu_type else [])]
        found = [_shortfall(project, metric, needed) for metric, needed in wanted]
        if gpu_type:
            gpu = catalog.gpu(gpu_type)
            # Spot VMs, and others that live a week at most, may draw from the preemptible quota too:
            # https://cloud.google.com/compute/docs/instances/limit-vm-runtime#quota
            held = [each for each in (gpu.quota, gpu.spot_quota) if each and each in regional]
            metrics = held if gpu.quota or settings.spot != "none" else []
            short = [each for metric in metrics if (each := _shortfall(regional, metric, gpus, regional=True))]
            together = settings.spot == "workers" and sum(each.free for each in short) >= gpus
            if short and len(short) == len(metrics) and not together:
                found.append(short[0])
        return [each for each in found if each]

    def regions(self, settings: Settings) -> Collection[str] | None:
        """The regions that have `gce.subnetwork`; None: any, as far as is known."""
        pinned = settings.subnetwork_region
        return self.subnetwork_regions if pinned is None else {pinned}


def _by_metric(quotas: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {str(quota["metric"]): quota for quota in quotas}


def _shortfall(
    quotas: Mapping[str, Mapping[str, Any]], metric: str, needed: int, *, regional: bool = False
) -> Shortfall | None:
    quota = quotas.get(metric, {"limit": math.inf})
    limit, usage = float(quota.get("limit", 0)), float(quota.get("usage", 0))
    if limit - usage >= needed:
        return None
    return Shortfall(metric=metric, needed=needed, limit=limit, usage=usage, regional=regional)


def ask(
    client: ComputeClient,
    settings: Settings,
    *,
    machines: Sequence[str],
    gpus: Sequence[str],
    doing: Callable[[str], str],
    others: Mapping[str, Callable[[], Any]] | None = None,
) -> Availability:
    """Ask all at once for quotas, and for the zones that have these machine types and GPUs.

    Args:
        doing: what a question is for, as `ApiError.as_user_error` takes it.
        others: more questions, by name.
    """
    asked: dict[str, Callable[[], Any]] = {"project": client.get_project, "regions": client.regions, **(others or {})}
    if machines:
        asked["machine_types"] = lambda: client.machine_types(machines)
    if gpus:
        asked["gpu_types"] = lambda: client.accelerator_types(gpus)
    if name := settings.subnetwork_name:
        asked["subnetworks"] = lambda: client.subnetworks(name)
    failures: dict[str, HvdcloudError] = {}

    def answer(what: str) -> Any:
        try:
            return asked[what]()
        except ApiError as error:
            failures[what] = error.as_user_error(doing=doing(what))
        except HvdcloudError as error:
            failures[what] = error
        return None

    answers = dict(zip(asked, side_by_side(answer, list(asked), only_reads=True), strict=True))
    return replace(availability(answers, settings, machines=machines, gpus=gpus), failures=failures)


def availability(
    answers: Mapping[str, Any], settings: Settings, *, machines: Sequence[str], gpus: Sequence[str]
) -> Availability:
    """What the answers to the questions of `ask` say. A list in which a place is missing says nothing."""

    def whole(what: str) -> Aggregated | None:
        found: Aggregated | None = answers.get(what)
        return None if found is None or found.unseen else found

    places: dict[str, set[str]] = {}
    for what, names in (("machine_types", machines), ("gpu_types", gpus)):
        if (found := whole(what)) is not None:
            places |= {name: {zone_of(item) for item in found.items if item["name"] == name} for name in names}
    regions = None
    if (found := whole("subnetworks")) is not None:
        mine = [each for each in found.items if same_path(str(each["network"]), network_path(settings))]
        regions = {last_segment(each["region"]) for each in mine}
    project = answers.get("project")
    return Availability(
        places=places,
        subnetwork_regions=regions,
        regional_quotas={str(region["name"]): region.get("quotas", ()) for region in answers.get("regions") or ()},
        project_quotas=None if project is None else project.get("quotas", ()),
        answers=answers,
    )


def zone_candidates(
    settings: Settings,
    *,
    nodes: int,
    zones: Sequence[str],
    available: Availability | None = None,
    home: str | None = None,
) -> list[str]:
    """Where to try, in order: the configured `zones`, else the catalogue's for the nodes' GPUs, cheapest first.

    Only where `gce.subnetwork` is. An empty list: the catalogue does not know, the API has to be asked.

    Args:
        home: the region of the images; of regions that cost the same it comes first.
    """

    def far(zone: str) -> tuple[bool, bool]:
        return home is not None and continent(zone) != continent(home), region_of(zone) != home

    gpu, _ = catalog.gpus_of(settings.machine_type, settings.gpu_type, settings.gpu_count)
    candidates = list(zones) or sorted(
        sorted(catalog.zones_with(gpu), key=far),
        key=lambda zone: dollars_per_hour(settings, range(nodes), zone=zone),
    )
    regions = (available or Availability()).regions(settings)
    return [zone for zone in candidates if regions is None or region_of(zone) in regions]
