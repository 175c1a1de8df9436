"""Which zones have what nodes need, and which regions have quota for it: for checks, plans and `offers`.

A zone that does not answer is taken to have everything, and a quota that is left out to be large: `up` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.errors import ApiError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.capacity.quota import Shortfall, shortfalls
from hvdcloud.providers.gce.money import catalog
from hvdcloud.providers.gce.names import continent, last_segment, region_of, zone_of
from hvdcloud.providers.gce.plan.budget import dollars_per_hour
from hvdcloud.providers.gce.plan.request import network_path, same_path
from hvdcloud.providers.gce.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Availability:
    """What the API says of places and quotas. None: it was not asked, or did not answer."""

    machine_zones: Mapping[str, Collection[str]] | None = None
    """Machine type → zones."""
    gpu_zones: Mapping[str, Collection[str]] | None = None
    unseen: frozenset[str] = frozenset()
    """Zones that did not answer; those above count them as well."""
    subnetwork_regions: Collection[str] | None = None
    """The regions that have the subnetwork whose name `gce.subnetwork` is."""
    status: Mapping[str, str] = field(default_factory=dict)
    """Zone → `UP` or `DOWN`; empty: not told."""
    regional_quotas: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Region → `quotas` of `regions.get`."""
    project_quotas: Sequence[Mapping[str, Any]] | None = None

    @property
    def up(self) -> set[str]:
        """The zones that say so."""
        return {zone for zone, status in self.status.items() if status == "UP"}

    def lacks(self, zone: str, *, machines: Sequence[str], gpus: Sequence[str]) -> str | None:
        """Which of these a zone does not have; None: it has all of them, as far as the API says."""
        return next((what for what, zones in reversed([*self._told(machines, gpus)]) if zone not in zones), None)

    def zones(self, listed: Sequence[str], *, machines: Sequence[str], gpus: Sequence[str]) -> list[str]:
        """The zones that have all of these: those of `listed` in their order, then others that the API names."""
        told = [zones for _, zones in self._told(machines, gpus)]
        if self.status:
            told.append(self.up)
        if not told:
            return [*listed]
        having = set.intersection(*told)
        return [*(zone for zone in listed if zone in having), *sorted(having - set(listed) - self.unseen)]

    def shortfalls(self, settings: Settings, *, nodes: int, region: str) -> list[Shortfall]:
        """The quotas without room for a whole cluster in this region."""
        regional, project = self.regional_quotas.get(region, ()), self.project_quotas or ()
        return shortfalls(settings, nodes=nodes, regional_quotas=regional, project_quotas=project)

    def regions(self, settings: Settings) -> Collection[str] | None:
        """The regions that have `gce.subnetwork`; None: any, as far as is known."""
        pinned = settings.subnetwork_region
        return self.subnetwork_regions if pinned is None else {pinned}

    def _told(self, machines: Sequence[str], gpus: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
        for names, zones in ((machines, self.machine_zones), (gpus, self.gpu_zones)):
            if zones is not None:
                yield from ((name, set(zones.get(name, ()))) for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What the API answered."""

    available: Availability
    answers: Mapping[str, Any]
    """By question: project, regions, machine_types, gpu_types, subnetworks, and others; None: not answered."""
    failures: Mapping[str, HvdcloudError]
    """Why questions were not answered."""


def ask(
    client: ComputeClient,
    settings: Settings,
    *,
    machines: Sequence[str],
    gpus: Sequence[str],
    doing: Callable[[str], str],
    others: Mapping[str, Callable[[], Any]] | None = None,
) -> Answers:
    """Ask all at once for quotas, and for the zones that have these machine types and GPUs.

    Args:
        doing: what a question is for, as `ApiError.as_user_error` takes it.
        others: more questions, such as `zones`, by name.
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
    available = availability(answers, settings, machines=machines, gpus=gpus)
    return Answers(available=available, answers=answers, failures=failures)


def availability(
    answers: Mapping[str, Any], settings: Settings, *, machines: Sequence[str], gpus: Sequence[str]
) -> Availability:
    """What the answers to the questions of `ask` say, and one to `zones` where that was asked too."""
    found: list[Aggregated | None] = [answers.get("machine_types"), answers.get("gpu_types")]
    project, subnetworks = answers.get("project"), answers.get("subnetworks")
    regions = _unseen(subnetworks, "region") if subnetworks is not None else None
    if subnetworks is not None and regions is not None:
        mine = [each for each in subnetworks.items if same_path(str(each["network"]), network_path(settings))]
        regions |= {last_segment(each["region"]) for each in mine}
    return Availability(
        machine_zones=_zones_by_name(found[0], machines),
        gpu_zones=_zones_by_name(found[1], gpus),
        unseen=frozenset().union(*(_unseen(answer, "zone") or () for answer in found if answer is not None)),
        subnetwork_regions=regions,
        status={str(zone["name"]): str(zone.get("status", "UP")) for zone in answers.get("zones") or ()},
        regional_quotas={str(region["name"]): region.get("quotas", ()) for region in answers.get("regions") or ()},
        project_quotas=None if project is None else project.get("quotas", ()),
    )


def _zones_by_name(answer: Aggregated | None, names: Sequence[str]) -> Mapping[str, set[str]] | None:
    unseen = None if answer is None else _unseen(answer, "zone")
    if answer is None or unseen is None:
        return None
    return {name: {zone_of(item) for item in answer.items if item["name"] == name} | unseen for name in names}


def _unseen(answer: Aggregated, kind: str) -> set[str] | None:
    """The zones or regions that did not answer; None: where more than those is missing, it says nothing of any."""
    found = {place.removeprefix(f"{kind} ") for place in answer.unseen if place.startswith(f"{kind} ")}
    return found if len(found) == len(answer.unseen) else None


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
