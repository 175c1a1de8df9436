"""Which zones have what nodes need, and which regions have quota for it: for checks, plans and `offers`.

A zone that does not answer is taken to have everything, and a quota that is left out to be large: `up` finds out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hvdcloud.errors import HvdcloudError
from hvdcloud.google.errors import ApiError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.capacity import quota
from hvdcloud.providers.gce.money import catalog, prices
from hvdcloud.providers.gce.money.catalog import NodeKind
from hvdcloud.providers.gce.money.transfer import IMAGE_GB, continent, dollars_per_gb
from hvdcloud.providers.gce.names import last_segment, region_of, zone_of
from hvdcloud.providers.gce.plan.budget import in_all
from hvdcloud.providers.gce.plan.request import network_path, same_path
from hvdcloud.providers.gce.settings import Group, Settings, groups

Questions = Mapping[str, Callable[[], Any]]


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

    def shortfalls(self, settings: Settings, *, nodes: int, region: str) -> list[quota.Shortfall]:
        """The quotas without room for a whole cluster in this region. Raises as `quota.needs`."""
        return quota.shortfalls(
            quota.needs(settings, nodes=nodes),
            regional_quotas=self.regional_quotas.get(region, ()),
            project_quotas=self.project_quotas or (),
        )

    def _told(self, machines: Sequence[str], gpus: Sequence[str]) -> Iterator[tuple[str, set[str]]]:
        for names, zones in ((machines, self.machine_zones), (gpus, self.gpu_zones)):
            if zones is not None:
                yield from ((name, set(zones.get(name, ()))) for name in names)


NOT_ASKED = Availability()


def questions(
    client: ComputeClient, settings: Settings, *, machines: Sequence[str], gpus: Sequence[str]
) -> dict[str, Callable[[], Any]]:
    """What has to be asked for an `Availability`."""
    asked: dict[str, Callable[[], Any]] = {"project": client.get_project, "regions": client.regions}
    if machines:
        asked["machine_types"] = lambda: client.machine_types(machines)
    if gpus:
        asked["gpu_types"] = lambda: client.accelerator_types(gpus)
    if name := settings.subnetwork_name:
        asked["subnetworks"] = lambda: client.subnetworks(name)
    return asked


def ask_all(asked: Questions, *, doing: Callable[[str], str]) -> tuple[dict[str, Any], dict[str, HvdcloudError]]:
    """All questions at once. Returns the answers, None where there is none, and why there is none.

    Args:
        doing: what a question is for, as `ApiError.as_user_error` takes it.
    """
    failures: dict[str, HvdcloudError] = {}

    def answer(what: str) -> Any:
        try:
            return asked[what]()
        except ApiError as error:
            failures[what] = error.as_user_error(doing=doing(what))
        except HvdcloudError as error:
            failures[what] = error
        return None

    return dict(zip(asked, side_by_side(answer, list(asked), only_reads=True), strict=True)), failures


def availability(
    answers: Mapping[str, Any], settings: Settings, *, machines: Sequence[str], gpus: Sequence[str]
) -> Availability:
    """What the answers to `questions` about these say, and one to `zones` where that was asked too."""
    found: list[Aggregated | None] = [answers.get("machine_types"), answers.get("gpu_types")]
    project = answers.get("project")
    return Availability(
        machine_zones=_zones_by_name(found[0], machines),
        gpu_zones=_zones_by_name(found[1], gpus),
        unseen=frozenset(zone for answer in found if answer is not None for zone in _unseen_zones(answer)),
        subnetwork_regions=_subnetwork_regions(answers.get("subnetworks"), settings),
        status={str(zone["name"]): str(zone.get("status", "UP")) for zone in answers.get("zones") or ()},
        regional_quotas={str(region["name"]): region.get("quotas", ()) for region in answers.get("regions") or ()},
        project_quotas=None if project is None else project.get("quotas", ()),
    )


def _zones_by_name(answer: Aggregated | None, names: Sequence[str]) -> Mapping[str, set[str]] | None:
    unseen = _unseen_zones(answer) if answer is not None else set()
    # Where more than zones is missing, the answer says nothing of any zone.
    if answer is None or len(unseen) < len(answer.unseen):
        return None
    return {name: {zone_of(item) for item in answer.items if item["name"] == name} | unseen for name in names}


def _subnetwork_regions(answer: Aggregated | None, settings: Settings) -> set[str] | None:
    if answer is None:
        return None
    unseen = {place.removeprefix("region ") for place in answer.unseen if place.startswith("region ")}
    if len(unseen) < len(answer.unseen):
        return None
    return {last_segment(item["region"]) for item in in_network(answer.items, settings)} | unseen


def in_network(subnetworks: Iterable[Mapping[str, Any]], settings: Settings) -> list[Mapping[str, Any]]:
    """Those of these subnetworks that belong to `gce.network`."""
    return [item for item in subnetworks if same_path(str(item["network"]), network_path(settings))]


def _unseen_zones(answer: Aggregated) -> set[str]:
    return {place.removeprefix("zone ") for place in answer.unseen if place.startswith("zone ")}


def allowed_regions(settings: Settings, available: Availability) -> Collection[str] | None:
    """The regions that have `gce.subnetwork`; None: any, as far as is known."""
    pinned = settings.subnetwork_region
    return available.subnetwork_regions if pinned is None else {pinned}


def zone_candidates(
    settings: Settings,
    *,
    nodes: int,
    zones: Sequence[str],
    available: Availability = NOT_ASKED,
    home: str | None = None,
) -> list[str]:
    """Where to try, in order: the configured `zones`, else the catalogue's for the nodes' GPUs, cheapest first.

    Only where `gce.subnetwork` is. An empty list: the catalogue does not know, the API has to be asked.

    Args:
        home: the region of the images; of regions that cost the same it comes first. That each node pulls its image
            from there counts as in a run of one hour.
    """
    kinds = groups(settings, range(nodes))

    def machines(region: str) -> float | None:
        def hourly(kind: NodeKind) -> float | None:
            return prices.node_dollars_per_hour(kind, disk_gb=0, external_ip=False, region=region)

        found = in_all(kinds, hourly)
        return None if found is None else found + nodes * IMAGE_GB * (dollars_per_gb(home, region) or 0.0)

    def far(zone: str) -> tuple[bool, bool]:
        return home is not None and continent(zone) != continent(home), region_of(zone) != home

    candidates = list(zones) or prices.by_price(sorted(_zones_with(kinds), key=far), price=machines)
    regions = allowed_regions(settings, available)
    return [zone for zone in candidates if regions is None or region_of(zone) in regions]


def _zones_with(kinds: Sequence[Group]) -> list[str]:
    """Those of the catalogue that have the GPUs of every kind; of a machine type without one it says nothing."""
    gpus = {each.kind.gpus[0] for each in kinds}
    first, *others = [catalog.zones_with(gpu) for gpu in gpus if gpu] or [catalog.zones_with(None)]
    return [zone for zone in first if all(zone in other for other in others)]
