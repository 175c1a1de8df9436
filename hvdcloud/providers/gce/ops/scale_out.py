"""Nodes that come to a cluster later: in its zone, for what is left of its time and of `limits.max_cost`."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_ID, LABEL_NODES, ClusterSpec, NodeState
from hvdcloud.errors import NameTakenError, NodeError, UsageError
from hvdcloud.google.errors import operation_errors
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.inventory import Inventory, Resource, labels_of
from hvdcloud.providers.gce.money.costs import costs
from hvdcloud.providers.gce.names import request_id, zone_of
from hvdcloud.providers.gce.ops.create import GcePlan, insert_requests
from hvdcloud.providers.gce.plan.budget import MIN_RUN_SECONDS, START_SECONDS, paid_zone
from hvdcloud.providers.gce.plan.request import bulk_insert_bodies
from hvdcloud.providers.gce.resource_mapper import node_state
from hvdcloud.providers.gce.settings import Settings

LABEL_SECONDS = 120.0
"""How long Compute Engine may take to change labels."""


def plan_growth(
    spec: ClusterSpec, settings: Settings, inventory: Inventory, indices: Sequence[int], *, vm_image: str, now: datetime
) -> GcePlan:
    """The bulkInserts for these nodes, one for each kind, in the head's zone. Pure.

    Args:
        spec: `nodes`: how many the cluster will have.
        inventory: all that exists of it.
        now: with its time zone.

    Raises:
        NodeError: it has no head.
        UsageError: its time is nearly over, `limits.max_cost` leaves too little, or it is made all at once.
    """
    if settings.flex_start:
        message = f"gce.provisioning: flex-start makes all nodes of {spec.name} at once: none comes later"
        raise UsageError(message, hint="hvdcloud down, then hvdcloud up --nodes N; or gce.provisioning: standard")
    wanted = {spec.node_name(index) for index in indices}
    ours = [vm for vm in inventory.instances if labels_of(vm).get(LABEL_ID) == spec.id]
    head = next((vm for vm in ours if vm["name"] == spec.node_name(0)), None)
    if head is None:
        raise NodeError(f"the head {spec.node_name(0)} is gone", hint=f"hvdcloud status --name {spec.name}")
    zone = zone_of(head)
    stay = [vm for vm in ours if vm["name"] not in wanted]
    settings = _within_its_time(settings, head, now=now)
    others = costs(stay, [], now=now)
    if others.dollars_per_hour is None and settings.max_cost is not None:
        hint = "leave limits.max_cost out, and set limits.max_run_duration"
        raise UsageError(f"limits.max_cost of {spec.name} cannot be kept: {'; '.join(others.notes)}", hint=hint)
    endless = others.worst_case is None and others.dollars_per_hour is not None
    if endless:
        # A node that nothing ends may cost anything.
        settings = replace(settings, max_cost=None)
    paid = paid_zone(settings, indices, zone=zone, spent=others.worst_case or 0.0)
    bodies = bulk_insert_bodies(spec, settings, zone=zone, vm_image=vm_image, indices=indices, run_seconds=paid.seconds)
    return GcePlan(
        spec=spec,
        requests=tuple(insert_requests(settings.project, zone, bodies)),
        dollars_per_hour=_sum(others.dollars_per_hour, paid.dollars_per_hour),
        worst_case_dollars=_sum(0.0 if endless else others.worst_case, paid.worst_case_dollars),
        seconds=float(paid.seconds),
        notices=(f"the new nodes end after {timedelta(seconds=paid.seconds)} at the latest, as the others do",),
        settings=settings,
        zones=(zone,),
        vm_image=vm_image,
        indices=tuple(indices),
    )


def _sum(one: float | None, other: float | None) -> float | None:
    """None: one of them is not known."""
    return None if one is None or other is None else one + other


def _within_its_time(settings: Settings, head: Resource, *, now: datetime) -> Settings:
    """The settings for nodes that may not live longer than the head. Raises UsageError: its time is nearly over."""
    ends = costs([head], [], now=now).ends
    if ends is None:
        return settings
    # Their time begins to count when they run.
    seconds = math.floor((ends - now).total_seconds()) - START_SECONDS
    if seconds < MIN_RUN_SECONDS:
        cluster = labels_of(head).get(LABEL_CLUSTER, "")
        raise UsageError(
            f"the time of cluster {cluster} is nearly over: Compute Engine deletes it at {ends:%H:%M:%S}Z",
            hint="limits.max_run_duration gives the next cluster more; what is in the bucket stays",
        )
    return replace(settings, max_run_seconds=min(settings.max_run_seconds, seconds))


def in_the_way(spec: ClusterSpec, inventory: Inventory, indices: Sequence[int]) -> set[str]:
    """Stopped VMs of the wanted names, and disks that they left. Raises NameTakenError: a VM is not stopped."""
    ours = inventory.only(spec.id).named({spec.node_name(index) for index in indices})
    for vm in ours.instances:
        if node_state(vm) is not NodeState.STOPPED:
            hint = f"hvdcloud status --name {spec.name}"
            raise NameTakenError(f"node {vm['name']} already exists, in {zone_of(vm)}", hint=hint)
    return {str(each["name"]) for each in (*ours.instances, *ours.loose_disks)}


def set_size(client: ComputeClient, cluster: str, inventory: Inventory, nodes: int) -> None:
    """Change the label on all VMs and disks that have another number. Raises ApiError: it could not be changed."""

    def change(resource: Resource) -> None:
        labels = {**labels_of(resource), LABEL_NODES: str(nodes)}
        operation = client.set_labels(resource, labels, request_id(cluster))
        operation = client.wait(operation, deadline=time.monotonic() + LABEL_SECONDS)
        if errors := operation_errors(operation):
            raise errors[0]

    labelled = (*inventory.instances, *inventory.disks)
    side_by_side(change, [each for each in labelled if labels_of(each).get(LABEL_NODES) != str(nodes)])
