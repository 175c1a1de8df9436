"""Delete, list again, and believe only what is listed."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_ID, Leftover
from hvdcloud.errors import HvdcloudError
from hvdcloud.google.error_rules import Action
from hvdcloud.google.errors import ApiError, operation_errors
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import NodeProgress, OnProgress, Stage, ignore_progress
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.inventory import (
    ACTIVE,
    DISKS,
    FIREWALLS,
    GROUPS,
    OPERATIONS,
    PLACEMENTS,
    TEMPLATES,
    VMS,
    Inventory,
    Resource,
    take_inventory,
    why,
)
from hvdcloud.providers.gce.names import last_segment, request_id, zone_of
from hvdcloud.providers.gce.resource_mapper import described_operation

DESTROY_SECONDS = 300.0
CREATING_SECONDS = 120.0
"""How long an operation that still makes something is waited for: what it makes afterwards would stay."""
ATTEMPTS = 3
"""At deleting one thing whose deletion was begun and failed."""
FIRST_PAUSE_SECONDS, PAUSE_SECONDS, PAUSE_GROWTH = 0.05, 3.0, 1.5
WAIT_SECONDS = 20.0


class _Kind(NamedTuple):
    """How a kind of thing is called: by us, by gcloud, and by the API's library."""

    word: str
    gcloud: str
    service: str
    field: str
    place: str = "zone"


_KINDS = {
    VMS: _Kind("VM", "instances", "Instances", "instance"),
    DISKS: _Kind("disk", "disks", "Disks", "disk"),
    FIREWALLS: _Kind("firewall", "firewall-rules", "Firewalls", "firewall"),
    PLACEMENTS: _Kind("placement", "resource-policies", "ResourcePolicies", "resource_policy", "region"),
    GROUPS: _Kind("group", "instance-groups managed", "InstanceGroupManagers", "instance_group_manager"),
    TEMPLATES: _Kind("template", "instance-templates", "InstanceTemplates", "instance_template"),
}


class Target(NamedTuple):
    """Something to delete."""

    kind: str
    name: str
    zone: str = ""
    """Empty for a firewall rule or a template, which are global; of a placement policy, its region."""

    @property
    def names(self) -> dict[str, str]:
        """As the client's `delete` takes them."""
        kind = _KINDS[self.kind]
        return {kind.field: self.name} | ({kind.place: self.zone} if self.zone else {})

    def __str__(self) -> str:
        word = _KINDS[self.kind].word
        return f"{word} {self.zone}/{self.name}" if self.zone else f"{word} {self.name}"

    def delete_with(self, project: str) -> str:
        """A command that deletes it by hand."""
        kind = _KINDS[self.kind]
        place = f" --{kind.place} {self.zone}" if self.zone else ""
        return f"gcloud compute {kind.gcloud} delete {self.name}{place} --project {project} --quiet"


@dataclass
class Sweep:
    """Deletes everything of a cluster that an inventory shows, until an inventory shows nothing.

    One listing takes four requests and only the deletions themselves are one call for each thing, so that 256 VMs are
    looked at as cheaply as one.
    """

    client: ComputeClient
    cluster: str
    """The name that the labels must have."""
    _: KW_ONLY
    cluster_id: str | None = None
    """Only of the cluster with this id; None: of any that has the name."""
    names: Collection[str] | None = None
    """Only VMs and disks of these names, and no group; None: all."""
    requests: Collection[str] | None = None
    """Only wait for operations with these requestIds; None: for all that make something for the name."""
    zones: Collection[str] | None = None
    """Only these can hold something; None: any zone."""
    expected: Collection[Target] = ()
    """What is looked for by name too, but disks and rules: nobody promises that lists show at once what was made."""
    firewalls: bool = True
    """Delete firewall rules as well, unless there are `names`."""
    on_progress: OnProgress = ignore_progress
    """Called once for everything that is gone."""

    def __post_init__(self) -> None:
        self.firewalls = self.firewalls and self.names is None
        self._reasons: dict[Target, str] = {}
        """Everything seen that is not proven gone, and why it may still be there."""
        self._operations: dict[Target, dict[str, Any]] = {}
        """Deletions that were begun."""
        self._attempts: Counter[Target] = Counter()
        self._refused: set[Target] = set()
        self._suspects: set[Target] = set()
        self._waiting: set[str] = set()
        """The names of resize requests, and of their groups, that may still make VMs."""

    def run(self) -> list[Leftover]:
        """Returns what could not be proven gone; never raises for an answer of the API."""
        started = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        while True:
            inventory = self._take_inventory()
            listed = self._settle(inventory)
            creating = [
                each
                for each in inventory.creating(self.cluster)
                if self.requests is None or each["clientOperationId"] in self.requests
            ]
            expired = time.monotonic() > started + DESTROY_SECONDS
            if creating and time.monotonic() < started + CREATING_SECONDS:
                self._wait(creating[0])
                continue
            if expired or not listed - self._refused:
                return self._leftovers(inventory, creating)
            self._find_failed_deletions(inventory, listed)
            ready = self._ready(listed - self._refused)
            side_by_side(self._delete, [each for each in ready if each not in self._operations])
            # The deletion that was begun last is likely to end last, or nearly; waiting for each would be N calls.
            if under_way := [each for target, each in self._operations.items() if target in listed - self._suspects]:
                self._wait(under_way[-1])
            time.sleep(pause)
            pause = min(pause * PAUSE_GROWTH, PAUSE_SECONDS)

    def _ready(self, targets: set[Target]) -> set[Target]:
        """What may be deleted now: groups before their VMs, which they delete and could make again; placements last."""
        kinds = {each.kind for each in targets}
        later = (VMS, TEMPLATES, PLACEMENTS) if GROUPS in kinds else (PLACEMENTS,) if VMS in kinds else ()
        return {each for each in targets if each.kind not in later}

    def _take_inventory(self) -> Inventory:
        inventory = take_inventory(self.client, self.cluster)
        if self.cluster_id is not None:
            inventory = inventory.only(self.cluster_id)
        if self.names is not None:
            inventory = inventory.named(self.names)
        if self.zones is not None:
            inventory = inventory.within(self.zones)
        return inventory

    def _settle(self, inventory: Inventory) -> set[Target]:
        """Note what exists and what is gone; returns what to delete now."""
        vms = {Target(VMS, vm["name"], zone_of(vm)) for vm in inventory.instances}
        # A disk that a VM holds goes with the VM; if it does not, it is loose the next time.
        disks = {Target(DISKS, disk["name"], zone_of(disk)): _holders(disk) for disk in inventory.loose_disks}
        rules = {Target(FIREWALLS, rule["name"]) for rule in inventory.firewalls} if self.firewalls else set()
        groups = {Target(GROUPS, each["name"], zone_of(each)) for each in inventory.groups}
        placed = {Target(PLACEMENTS, each["name"], last_segment(each["region"])) for each in inventory.placements}
        self._waiting = {each["name"] for each in inventory.requests if each.get("state") in ACTIVE}
        listed = vms | disks.keys() | rules | groups | placed
        listed |= {Target(TEMPLATES, each["name"]) for each in inventory.templates}
        hidden, unsure = self._hidden(inventory, listed, set().union(*disks.values()))
        listed = listed - {disk for disk, holders in disks.items() if holders & hidden} | hidden
        for target in listed:
            self._reasons.setdefault(target, "it still exists")
        for target in self._reasons.keys() - listed:
            if target in unsure:
                self._reasons[target] = f"it cannot be seen: {why(unsure[target])}"
            elif target.kind in inventory.failures:
                self._reasons[target] = f"it cannot be seen: {why(inventory.failures[target.kind])}"
            elif not inventory.sees(target.zone):
                self._reasons[target] = "the place where it was does not answer"
            else:
                del self._reasons[target]
                self.on_progress(NodeProgress(object=str(target), step="deleted", stage=Stage.DELETED))
        return listed

    def _hidden(
        self, inventory: Inventory, listed: set[Target], holders: set[Target]
    ) -> tuple[set[Target], dict[Target, ApiError | HvdcloudError]]:
        """What exists although the list does not show it, and that of which this could not be found out.

        Args:
            holders: VMs that disks name as theirs.
        """
        zones: dict[str, set[str]] = defaultdict(set)
        for target in {*self.expected, *self._reasons, *holders} - listed:
            if target.kind == VMS and VMS not in inventory.failures and inventory.sees(target.zone):
                zones[target.zone].add(target.name)
        hidden: set[Target] = set()
        unsure: dict[Target, ApiError | HvdcloudError] = {}
        for zone, names in zones.items():
            try:
                found = self.client.instances_by_name(zone, names)
            except (ApiError, HvdcloudError) as error:
                unsure |= {Target(VMS, name, zone): error for name in names}
                continue
            hidden |= {Target(VMS, vm["name"], zone) for vm in found if self._is_ours(vm)}
        # Their names have the cluster's id in them.
        for target in {*self.expected, *self._reasons} - listed:
            seen = target.kind not in inventory.failures and inventory.sees(target.zone)
            if target.kind in (GROUPS, PLACEMENTS, TEMPLATES) and seen:
                try:
                    if self.client.exists(_KINDS[target.kind].service, **target.names):
                        hidden.add(target)
                except (ApiError, HvdcloudError) as error:
                    unsure[target] = error
        return hidden, unsure

    def _is_ours(self, vm: Resource) -> bool:
        labels = vm.get("labels", {})
        return labels.get(LABEL_CLUSTER) == self.cluster and self.cluster_id in (None, labels.get(LABEL_ID))

    def _delete(self, target: Target) -> None:
        self._attempts[target] += 1
        if target.kind == GROUPS and target.name in self._waiting:
            self._cancel(target)
        try:
            operation = self.client.delete(_KINDS[target.kind].service, request_id(self.cluster), **target.names)
        except (ApiError, HvdcloudError) as error:
            self._failed(target, error)
        else:
            self._reasons[target] = "it was deleted but is still listed"
            if operation is not None:
                self._operations[target] = operation

    def _cancel(self, group: Target) -> None:
        """Take the group's request out of the queue first: of one that is being fulfilled all VMs start.

        One that has just left the queue cannot be cancelled; it goes with its group, as does any other.
        """
        try:
            asked = request_id(self.cluster)
            self._wait(self.client.cancel_resize_request(group.zone, group.name, group.name, asked))
        except (ApiError, HvdcloudError) as error:
            self._reasons[group] = f"its request could not be cancelled: {why(error)}"

    def _failed(self, target: Target, error: ApiError | HvdcloudError) -> None:
        self._reasons[target] = why(error)
        final = not isinstance(error, ApiError) or error.action is Action.STOP
        if final or self._attempts[target] >= ATTEMPTS:
            self._refused.add(target)

    def _find_failed_deletions(self, inventory: Inventory, listed: set[Target]) -> None:
        """A deletion that is over while its object exists has failed, and its operation tells why.

        Lists are made one after the other, so two in a row must show it.
        """
        if OPERATIONS in inventory.failures:
            return
        in_flight = {operation["name"] for operation in inventory.operations}
        begun = listed & self._operations.keys()
        suspects = {target for target in begun if self._operations[target]["name"] not in in_flight}
        for target in suspects & self._suspects:
            operation = self._wait(self._operations[target]) or {}
            if errors := operation_errors(operation):
                del self._operations[target]
                self._failed(target, errors[0])
        self._suspects = suspects

    def _wait(self, operation: Resource) -> dict[str, Any] | None:
        try:
            return self.client.wait(operation, deadline=time.monotonic() + WAIT_SECONDS)
        except (ApiError, HvdcloudError):
            # The next listing shows how things are.
            return None

    def _leftovers(self, inventory: Inventory, creating: list[Resource]) -> list[Leftover]:
        project = self.client.project
        look = f"gcloud compute instances list --project {project} --filter=labels.{LABEL_CLUSTER}={self.cluster}"
        left = [(str(target), reason, target.delete_with(project)) for target, reason in sorted(self._reasons.items())]
        left += [(place, f"did not answer; it may hold machines of {self.cluster}", look) for place in inventory.unseen]
        left += [
            (f"{what} of {self.cluster}", f"they cannot be listed: {why(error)}", look)
            for what, error in sorted(inventory.failures.items())
            if self.firewalls or what != FIREWALLS
            if self.names is None or what != PLACEMENTS
        ]
        late = f"it still makes something after {CREATING_SECONDS:.0f} s"
        left += [(described_operation(operation), late, look) for operation in creating]
        return [Leftover(object=what, reason=reason, delete_with=command) for what, reason, command in left]


def _holders(disk: Resource) -> set[Target]:
    """The VMs that the disk says it is attached to."""
    return {Target(VMS, last_segment(user), zone_of(disk)) for user in disk.get("users", ())}
