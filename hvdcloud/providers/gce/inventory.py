"""What a project holds of one cluster or of all, as far as its API shows it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_ID, LABEL_MANAGED_BY, MANAGED_BY
from hvdcloud.errors import HvdcloudError
from hvdcloud.google.errors import ApiError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.names import belongs_to, last_segment, zone_of

Resource = Mapping[str, Any]
"""As the API answers it: camelCase keys."""

VMS, DISKS, FIREWALLS, OPERATIONS = "VMs", "disks", "firewall rules", "operations"
PLACEMENTS = "placement policies"
GROUPS, TEMPLATES, REQUESTS = "instance groups", "instance templates", "resize requests"
ACTIVE = ("CREATING", "ACCEPTED")
"""States of a resize request that may still make VMs (discovery document)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """What was found at one moment, and what could not be seen then."""

    instances: tuple[Resource, ...] = ()
    disks: tuple[Resource, ...] = ()
    """With our labels, attached or not."""
    firewalls: tuple[Resource, ...] = ()
    placements: tuple[Resource, ...] = ()
    groups: tuple[Resource, ...] = ()
    templates: tuple[Resource, ...] = ()
    requests: tuple[Resource, ...] = ()
    """The resize requests of these groups, each with the name of its group."""
    operations: tuple[Resource, ...] = ()
    """All of the project's that are not DONE, also of other tools."""
    unseen: tuple[str, ...] = ()
    """`zone us-central1-f`."""
    failures: Mapping[str, ApiError | HvdcloudError] = field(default_factory=dict)
    """By what was asked for, the questions that got no answer at all."""

    @property
    def loose_disks(self) -> tuple[Resource, ...]:
        """Disks that no VM holds, so that they do not go with one."""
        if VMS in self.failures:
            return ()
        attached = [(zone_of(vm), disk) for vm in self.instances for disk in vm.get("disks", ())]
        held = {(zone, last_segment(disk.get("source", ""))) for zone, disk in attached}
        return tuple(disk for disk in self.disks if (zone_of(disk), disk["name"]) not in held)

    @property
    def described(self) -> tuple[Resource, ...]:
        """What has no labels, and tells them in its description."""
        return (*self.groups, *self.templates, *self.placements, *self.firewalls)

    def creating(self, cluster: str) -> tuple[Resource, ...]:
        """Operations that still make something for a cluster of this name, also those of other machines."""
        making = [each for each in self.operations if str(each.get("operationType")).endswith(("bulkInsert", "insert"))]
        return tuple(each for each in making if belongs_to(str(each.get("clientOperationId", "")), cluster))

    def only(self, cluster_id: str) -> Inventory:
        """The part that belongs to the one cluster with this id, of all those of its name."""
        return self._kept(lambda each: (labels_of(each) or described_labels(each)).get(LABEL_ID) == cluster_id)

    def named(self, names: Collection[str]) -> Inventory:
        """The part that is VMs and disks of these names; a boot disk has its VM's."""
        return self._kept(lambda each: each["name"] in names)

    def _kept(self, keep: Callable[[Resource], bool]) -> Inventory:
        return replace(
            self,
            instances=tuple(filter(keep, self.instances)),
            disks=tuple(filter(keep, self.disks)),
            firewalls=tuple(filter(keep, self.firewalls)),
            placements=tuple(filter(keep, self.placements)),
            groups=tuple(filter(keep, self.groups)),
            templates=tuple(filter(keep, self.templates)),
            requests=tuple(filter(keep, self.requests)),
        )

    def within(self, zones: Collection[str]) -> Inventory:
        """Without what could not be seen in zones that do not matter."""
        unseen = tuple(place for place in self.unseen if any(_covers(place, zone) for zone in zones))
        return replace(self, unseen=unseen)

    def sees(self, zone: str) -> bool:
        """Whether something in this zone (empty: a global one) would have been found."""
        return not any(_covers(place, zone) for place in self.unseen)


def take_inventory(client: ComputeClient, cluster: str | None) -> Inventory:
    """Seven questions at once, however many VMs there are, and one for each group that waits for room.

    `cluster`: a cluster's name; None: every cluster.
    """
    questions: dict[str, Callable[[], Aggregated | list[dict[str, Any]]]] = {
        VMS: lambda: client.instances(cluster),
        DISKS: lambda: client.disks(cluster),
        FIREWALLS: client.firewalls,
        PLACEMENTS: client.placements,
        GROUPS: client.groups,
        TEMPLATES: client.templates,
        OPERATIONS: client.operations_in_flight,
    }

    def answer(what: str) -> Aggregated | ApiError | HvdcloudError:
        try:
            found = questions[what]()
        except (ApiError, HvdcloudError) as error:
            return error
        return Aggregated(items=found) if isinstance(found, list) else found

    answers = dict(zip(questions, side_by_side(answer, list(questions), only_reads=True), strict=True))
    found = {what: answer for what, answer in answers.items() if isinstance(answer, Aggregated)}
    items = {what: tuple(answer.items) for what, answer in found.items()}
    ours = {LABEL_MANAGED_BY: MANAGED_BY} | ({LABEL_CLUSTER: cluster} if cluster is not None else {})
    described = {
        what: tuple(each for each in items.get(what, ()) if ours.items() <= described_labels(each).items())
        for what in (FIREWALLS, GROUPS, PLACEMENTS, TEMPLATES)
    }
    failures = {what: answer for what, answer in answers.items() if not isinstance(answer, Aggregated)}
    requests: list[Resource] = []
    for group in described[GROUPS]:
        try:
            requests += client.resize_requests(zone_of(group), group["name"])
        except (ApiError, HvdcloudError) as error:
            failures[REQUESTS] = error
    return Inventory(
        instances=items.get(VMS, ()),
        disks=items.get(DISKS, ()),
        firewalls=described[FIREWALLS],
        placements=described[PLACEMENTS],
        groups=described[GROUPS],
        templates=described[TEMPLATES],
        requests=tuple(requests),
        operations=items.get(OPERATIONS, ()),
        unseen=tuple(sorted({place for answer in found.values() for place in answer.unseen})),
        failures=failures,
    )


def why(error: ApiError | HvdcloudError) -> str:
    """In a line: `403 forbidden: Required 'compute.disks.list' permission for 'projects/p'`."""
    if not isinstance(error, ApiError):
        return error.message
    return error.cause if error.label in error.cause else f"{error.label}: {error.cause}"


def labels_of(resource: Resource) -> Mapping[str, str]:
    """Of a VM or a disk."""
    labels: Mapping[str, str] = resource.get("labels", {})
    return labels


def described_labels(resource: Resource) -> dict[str, str]:
    """The labels of a firewall rule, a group or a template, which are in its description: it has no others."""
    words = (word.partition("=") for word in str(resource.get("description", "")).split())
    return {key: value for key, equals, value in words if equals}


def _covers(place: str, zone: str) -> bool:
    """A place that is not a zone, such as a part of the project, may hold anything."""
    return not place.startswith("zone ") or place == f"zone {zone}"
