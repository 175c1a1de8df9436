"""Delete, look again, and believe only what is seen."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Any, NamedTuple

from hvdcloud.cluster.model import LABEL_CLUSTER, Leftover
from hvdcloud.errors import HvdcloudError
from hvdcloud.google.errors import Action, ApiError, operation_errors
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import NodeProgress, OnProgress, Stage, ignore_progress
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.inventory import DISKS, FIREWALLS, OPERATIONS, VMS, Inventory, Resource, take_inventory, why
from hvdcloud.providers.gce.names import request_id, zone_of
from hvdcloud.providers.gce.resource_mapper import described_operation

DESTROY_SECONDS = 300.0
CREATING_SECONDS = 120.0
"""How long an operation that still makes something is waited for: what it makes afterwards would stay."""
ATTEMPTS = 3
"""At deleting one thing whose deletion was begun and failed."""
FIRST_PAUSE_SECONDS, PAUSE_SECONDS, PAUSE_GROWTH = 0.05, 3.0, 1.5
WAIT_SECONDS = 20.0


class Target(NamedTuple):
    """Something to delete."""

    kind: str
    name: str
    zone: str = ""
    """Empty for a firewall rule, which is global."""

    def __str__(self) -> str:
        word = {VMS: "VM", DISKS: "disk", FIREWALLS: "firewall"}[self.kind]
        return f"{word} {self.zone}/{self.name}" if self.zone else f"{word} {self.name}"

    def delete_with(self, project: str) -> str:
        """A command that deletes it by hand."""
        word = {VMS: "instances", DISKS: "disks", FIREWALLS: "firewall-rules"}[self.kind]
        place = f" --zone {self.zone}" if self.zone else ""
        return f"gcloud compute {word} delete {self.name}{place} --project {project} --quiet"


class Sweep:
    """Deletes everything of a cluster that an inventory shows, until an inventory shows nothing.

    One look asks four questions and only the deletions themselves are one call for each thing, so that 256 VMs are
    looked at as cheaply as one.

    Args:
        cluster: the name that the labels must have.
        cluster_id: only of the cluster with this id; None: of any that has the name.
        names: only VMs and disks of these names; None: all.
        requests: only wait for operations with these requestIds; None: for all that make something for the name.
        zones: only these can hold something; None: any zone.
        firewalls: delete firewall rules as well.
        creating_seconds: how long an operation that still makes something is waited for.
        on_progress: called once for everything that is gone.
    """

    def __init__(
        self,
        client: ComputeClient,
        cluster: str,
        *,
        cluster_id: str | None = None,
        names: Collection[str] | None = None,
        requests: Collection[str] | None = None,
        zones: Collection[str] | None = None,
        firewalls: bool = True,
        creating_seconds: float = CREATING_SECONDS,
        on_progress: OnProgress = ignore_progress,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._cluster_id = cluster_id
        self._names = names
        self._requests = requests
        self._zones = zones
        self._firewalls = firewalls
        self._creating_seconds = creating_seconds
        self._on_progress = on_progress
        self._reasons: dict[Target, str] = {}
        """Everything seen that is not proven gone, and why it may still be there."""
        self._operations: dict[Target, dict[str, Any]] = {}
        """Deletions that were begun."""
        self._attempts: dict[Target, int] = {}
        self._refused: set[Target] = set()
        self._suspects: set[Target] = set()

    def run(self) -> list[Leftover]:
        """Returns what could not be proven gone; never raises for an answer of the API."""
        started = time.monotonic()
        pause = FIRST_PAUSE_SECONDS
        while True:
            inventory = self._take_inventory()
            listed = self._settle(inventory)
            creating = self._creating(inventory)
            expired = time.monotonic() > started + DESTROY_SECONDS
            if creating and time.monotonic() < started + self._creating_seconds:
                self._wait(creating[0])
                continue
            if expired or not listed - self._refused:
                return self._leftovers(inventory, creating)
            self._find_failed_deletions(inventory, listed)
            side_by_side(self._delete, [each for each in listed - self._refused if each not in self._operations])
            self._wait_for_last(listed)
            time.sleep(pause)
            pause = min(pause * PAUSE_GROWTH, PAUSE_SECONDS)

    def _take_inventory(self) -> Inventory:
        inventory = take_inventory(self._client, self._cluster)
        if self._cluster_id is not None:
            inventory = inventory.only(self._cluster_id)
        if self._names is not None:
            inventory = inventory.named(self._names)
        if self._zones is not None:
            inventory = inventory.within(self._zones)
        return inventory

    def _settle(self, inventory: Inventory) -> set[Target]:
        """Note what exists and what is gone; returns what to delete now."""
        vms = {Target(VMS, vm["name"], zone_of(vm)) for vm in inventory.instances}
        # A disk that a VM holds goes with the VM; if it does not, it is loose the next time.
        disks = {Target(DISKS, disk["name"], zone_of(disk)) for disk in inventory.loose_disks}
        rules = {Target(FIREWALLS, rule["name"]) for rule in inventory.firewalls} if self._firewalls else set()
        listed = vms | disks | rules
        for target in listed:
            self._reasons.setdefault(target, "it is still listed")
        for target in self._reasons.keys() - listed:
            if target.kind in inventory.failures:
                self._reasons[target] = f"it cannot be seen: {why(inventory.failures[target.kind])}"
            elif not inventory.sees(target.zone):
                self._reasons[target] = "the place where it was does not answer"
            else:
                del self._reasons[target]
                self._on_progress(NodeProgress(object=str(target), step="deleted", stage=Stage.DELETED))
        return listed

    def _creating(self, inventory: Inventory) -> list[Resource]:
        return [
            operation
            for operation in inventory.creating(self._cluster)
            if self._requests is None or operation["clientOperationId"] in self._requests
        ]

    def _delete(self, target: Target) -> None:
        self._attempts[target] = self._attempts.get(target, 0) + 1
        request = request_id(self._cluster)
        try:
            if target.kind == VMS:
                operation = self._client.delete_instance(target.zone, target.name, request)
            elif target.kind == DISKS:
                operation = self._client.delete_disk(target.zone, target.name, request)
            else:
                operation = self._client.delete_firewall(target.name, request)
        except (ApiError, HvdcloudError) as error:
            self._failed(target, error)
        else:
            self._reasons[target] = "it was deleted but is still listed"
            if operation is not None:
                self._operations[target] = operation

    def _failed(self, target: Target, error: ApiError | HvdcloudError) -> None:
        self._reasons[target] = why(error)
        final = not isinstance(error, ApiError) or error.action is Action.STOP
        if final or self._attempts[target] >= ATTEMPTS:
            self._refused.add(target)

    def _find_failed_deletions(self, inventory: Inventory, listed: set[Target]) -> None:
        """A deletion that is over while its object exists has failed, and its operation tells why.

        Lists are made one after the other, so it must look like that twice.
        """
        if OPERATIONS in inventory.failures:
            return
        in_flight = {operation["name"] for operation in inventory.operations}
        suspects = {
            target for target in listed & self._operations.keys() if self._operations[target]["name"] not in in_flight
        }
        for target in suspects & self._suspects:
            operation = self._wait(self._operations[target]) or {}
            if errors := operation_errors(operation):
                del self._operations[target]
                self._failed(target, errors[0])
        self._suspects = suspects

    def _wait_for_last(self, listed: set[Target]) -> None:
        """The deletion that was begun last is likely to end last, or nearly; waiting for each would be N calls."""
        under_way = [operation for target, operation in self._operations.items() if target in listed - self._suspects]
        if under_way:
            self._wait(under_way[-1])

    def _wait(self, operation: Resource) -> dict[str, Any] | None:
        try:
            return self._client.wait(operation, deadline=time.monotonic() + WAIT_SECONDS)
        except (ApiError, HvdcloudError):
            # The next look tells how things are.
            return None

    def _leftovers(self, inventory: Inventory, creating: list[Resource]) -> list[Leftover]:
        project = self._client.project
        look = f"gcloud compute instances list --project {project} --filter=labels.{LABEL_CLUSTER}={self._cluster}"
        left = [
            Leftover(object=str(target), reason=reason, delete_with=target.delete_with(project))
            for target, reason in sorted(self._reasons.items())
        ]
        left += [
            Leftover(object=place, reason=f"did not answer; it may hold machines of {self._cluster}", delete_with=look)
            for place in inventory.unseen
        ]
        left += [
            Leftover(
                object=f"{what} of {self._cluster}", reason=f"they cannot be listed: {why(error)}", delete_with=look
            )
            for what, error in sorted(inventory.failures.items())
            if self._firewalls or what != FIREWALLS
        ]
        left += [
            Leftover(
                object=described_operation(operation),
                reason=f"it still makes something after {self._creating_seconds:.0f} s",
                delete_with=look,
            )
            for operation in creating
        ]
        return left
