"""All VMs in one zone or none anywhere: one bulkInsert or flex-start request after the other, until there is room."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
import textwrap
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.cluster.model import LABEL_ID, ClusterSpec, Leftover, Plan, Request, leftover_table
from hvdcloud.errors import CapacityError, HvdcloudError, NameTakenError, TeardownError, UsageError
from hvdcloud.google.error_rules import ALREADY_EXISTS, ELSEWHERE, RULES, TOO_FEW, Action
from hvdcloud.google.errors import ApiError, explained, operation_errors
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import NodeProgress, NoRoomError, OnProgress, Stage, ignore_progress
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.gce.inventory import GROUPS, PLACEMENTS, TEMPLATES, VMS, Resource, labels_of
from hvdcloud.providers.gce.names import region_of, request_id, zone_of
from hvdcloud.providers.gce.ops import AbortedError, flex_start
from hvdcloud.providers.gce.ops.delete import Sweep, Target
from hvdcloud.providers.gce.plan.request import (
    bulk_insert_bodies,
    cluster_tag,
    flex_start_bodies,
    placement_body,
)
from hvdcloud.providers.gce.settings import Settings, groups
from hvdcloud.units import counted

CREATE_SECONDS = 900.0
"""For one bulkInsert; gcloud gives up after as long."""
ATTEMPTS = 3
"""In one zone, where the operation failed for a reason that passes."""
BACKOFF_SECONDS = 2.0
BACKOFF_CAP_SECONDS = 10.0
FIREWALL_SECONDS = 120.0
LINE_LENGTH = 200

# Of several errors, the one that rules most out decides.
_SEVERITY = (Action.STOP, Action.NEXT_REGION, Action.NEXT_ZONE, Action.RETRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class GcePlan(Plan):
    """The firewall rules, and the bulkInserts for the first zone; the other zones get similar ones."""

    settings: Settings
    zones: tuple[str, ...]
    """Tried in this order."""
    vm_image: str
    firewalls: tuple[Request, ...] = ()
    """Those of `requests` that make firewall rules: the first ones."""
    placement: Request | None = None
    """That of `requests` that makes a placement policy for the first zone's region, before any VM."""
    indices: tuple[int, ...] | None = None
    """Of the nodes to make, of a cluster that exists; None: all of a new one."""

    @property
    def names(self) -> frozenset[str]:
        """Of the nodes to make."""
        return frozenset(map(self.spec.node_name, range(self.spec.nodes) if self.indices is None else self.indices))

    def bodies(self, zone: str) -> Sequence[Mapping[str, Any]]:
        """The bulkInserts for a zone, or what makes a flex-start request, to be sent one after the other."""
        if zone == self.zones[0]:
            return [request.body for request in self.requests[len(self.firewalls) + bool(self.placement) :]]
        if self.settings.flex_start:
            return flex_start_bodies(self.spec, self.settings, zone=zone, vm_image=self.vm_image)
        return bulk_insert_bodies(self.spec, self.settings, zone=zone, vm_image=self.vm_image)


def placement_request(spec: ClusterSpec, settings: Settings, zone: str) -> Request | None:
    """What makes the placement policy of a new cluster in a zone's region; None: it needs none."""
    body = placement_body(spec, settings)
    if body is None:
        return None
    method = f"POST /compute/v1/projects/{settings.project}/regions/{region_of(zone)}/resourcePolicies"
    return Request(object=f"placement {body['name']} in {region_of(zone)}", method=method, body=body)


def first_requests(spec: ClusterSpec, settings: Settings, *, zone: str, vm_image: str) -> list[Request]:
    """What makes the VMs of a new cluster in a zone."""
    if not settings.flex_start:
        bodies = bulk_insert_bodies(spec, settings, zone=zone, vm_image=vm_image)
        return insert_requests(settings.project, zone, bodies)
    template, group, resize = flex_start_bodies(spec, settings, zone=zone, vm_image=vm_image)
    name, root = template["name"], f"POST /compute/v1/projects/{settings.project}"
    at = f"{root}/zones/{zone}/instanceGroupManagers"
    what = f"{counted(spec.nodes, 'VM')} in {zone}, all at once"
    return [
        Request(object=f"template {name}", method=f"{root}/global/instanceTemplates", body=template),
        Request(object=f"group {zone}/{name}", method=at, body=group),
        Request(object=f"flex-start request for {what}", method=f"{at}/{name}/resizeRequests", body=resize),
    ]


def insert_requests(project: str, zone: str, bodies: Sequence[Mapping[str, Any]]) -> list[Request]:
    """The bulkInserts of a plan, one for each kind of node."""
    method = f"POST /compute/v1/projects/{project}/zones/{zone}/instances/bulkInsert"
    requests = []
    for body in bodies:
        names = list(body["perInstanceProperties"])
        vms = f"1 VM {names[0]}" if len(names) == 1 else f"{len(names)} VMs {names[0]} … {names[-1]}"
        requests.append(Request(object=f"{vms} in {zone}", method=method, body=body))
    return requests


class Creation:
    """The VMs of one `up`, or those that come to a cluster later."""

    def __init__(self, client: ComputeClient, plan: GcePlan, *, on_progress: OnProgress) -> None:
        self._client = client
        self._plan = plan
        self._spec = plan.spec
        self._on_progress = on_progress
        self._vms = counted(len(plan.names), "VM")
        self._only = None if plan.indices is None else plan.names
        """Nothing else of the cluster is to be touched; None: there is nothing else."""
        self._abort = threading.Event()
        self._requests: set[str] = set()
        self._zones: set[str] = set()
        """Where something was asked for."""
        self._instances: list[dict[str, Any]] = []
        self._taken = False
        self._until = time.monotonic() + (plan.spec.wait or flex_start.WAIT_SECONDS)
        """When flex-start requests have waited long enough, in whatever zones."""

    def run(self) -> list[dict[str, Any]]:
        """Make all VMs of the plan and return them; after any failure, or Ctrl-C, nothing of it is left.

        Raises:
            CapacityError: no zone has room.  NameTakenError: a node's.  UsageError: the request is refused.
            CredentialsError: not allowed.  NodeError: the API does not do its part.
            TeardownError: something that was made in a zone that would not do could not be deleted.
        """
        jobs: list[Callable[[], None]] = [self._in_some_zone]
        jobs += [functools.partial(self._make_firewall, request) for request in self._plan.firewalls]
        try:
            # In threads: Ctrl-C must not leave us without the answer to a request that the API carries out.
            side_by_side(lambda job: job(), jobs, on_abort=self._abort.set)
        except BaseException as error:
            failure = error.as_user_error(doing=f"create {self._vms}") if isinstance(error, ApiError) else error
            if (left := self._undo()) and isinstance(failure, HvdcloudError):
                failure.add_details(leftover_table(left))
            if failure is error:
                raise
            raise failure from error
        return self._instances

    def _undo(self) -> list[Leftover]:
        """Delete what has this cluster's id: a cluster of the same name that another user made meanwhile stays."""
        if not self._requests:
            return []
        if self._taken and self._only is not None:
            # What exists has this cluster's id and existed before; Compute Engine takes back the others itself.
            return []
        return self._sweep(zones=self._zones, firewalls=True, on_progress=self._on_progress).run()

    def _sweep(
        self, *, zones: Collection[str], firewalls: bool = False, on_progress: OnProgress = ignore_progress
    ) -> Sweep:
        return Sweep(
            client=self._client,
            cluster=self._spec.name,
            cluster_id=self._spec.id,
            requests=self._requests,
            names=self._only,
            zones=zones,
            expected=[target for zone in zones for target in self._expected(zone)],
            firewalls=firewalls,
            on_progress=on_progress,
        )

    def _expected(self, zone: str) -> list[Target]:
        made = [Target(VMS, name, zone) for name in self._plan.names]
        tag = cluster_tag(self._spec)
        if self._plan.settings.flex_start:
            made += [Target(GROUPS, tag, zone), Target(TEMPLATES, tag)]
        if self._plan.placement:
            made.append(Target(PLACEMENTS, tag, region_of(zone)))
        return made

    def _in_some_zone(self) -> None:
        failed: dict[str, ApiError] = {}
        full: dict[str, ApiError] = {}
        """By region."""
        for zone in self._plan.zones:
            region = region_of(zone)
            error = full.get(region) or self._in_zone(zone)
            if error is None:
                self._report(zone, "created", stage=Stage.DONE)
                return
            failed[zone] = error
            if error.action is Action.NEXT_REGION:
                full[region] = error
            self._report(zone, _last_said(error))
        raise self._nowhere(failed)

    def _in_zone(self, zone: str) -> ApiError | None:
        """Returns why this zone will not do, if another one may; then nothing is left in this one."""
        for attempt in itertools.count(1):
            error = self._attempt(zone)
            if error is None:
                return None
            if error.action is Action.STOP:
                raise self._final(error, zone)
            self._clear(zone)
            if error.action is not Action.RETRY or attempt >= ATTEMPTS:
                break
            self._report(zone, f"{textwrap.shorten(str(error), LINE_LENGTH, placeholder='…')}; again in a moment")
            self._abort.wait(random.uniform(0, min(BACKOFF_SECONDS * 2**attempt, BACKOFF_CAP_SECONDS)))
        return error

    def _attempt(self, zone: str) -> ApiError | None:
        """One bulkInsert for each kind of node, or one flex-start request. Returns why there are no VMs, or not all."""
        if self._plan.settings.flex_start:
            return self._flex_start(zone) or self._confirm(zone)
        if placement := self._plan.placement:
            send = functools.partial(self._client.insert_placement, region_of(zone), placement.body)
            if error := self._insert(zone, send, "making the placement policy"):
                return error
        for body in self._plan.bodies(zone):
            send = functools.partial(self._client.bulk_insert, zone, body)
            if error := self._insert(zone, send, f"asking for {counted(int(body['count']), 'VM')}"):
                return error
        return self._confirm(zone)

    def _flex_start(self, zone: str) -> ApiError | None:
        """Queue a request for all VMs and follow it. Returns why it is refused."""
        client, name = self._client, cluster_tag(self._spec)
        template, group, resize = self._plan.bodies(zone)
        steps: Sequence[tuple[str, Callable[[str], dict[str, Any]]]] = (
            ("making the template", functools.partial(client.insert_template, template)),
            ("making the group", functools.partial(client.insert_group, zone, group)),
            (f"asking for {self._vms}", functools.partial(client.insert_resize_request, zone, name, resize)),
        )
        for said, send in steps:
            if error := self._insert(zone, send, said):
                return error
        report = functools.partial(self._report, zone)
        return flex_start.follow(client, zone, name, until=self._until, stop=self._abort, report=report)

    def _insert(self, zone: str, send: Callable[[str], dict[str, Any]], said: str) -> ApiError | None:
        """Send one request and wait for its operation. Returns why it had no effect."""
        if self._abort.is_set():
            raise AbortedError
        request = self._new_request()
        self._zones.add(zone)
        self._report(zone, said)
        try:
            operation = send(request)
        except ApiError as error:
            if error.action is Action.RETRY:
                # The client has retried for long. Another request would not fare better, and this one may have begun.
                raise self._final(error, zone) from error
            return error
        operation = self._client.wait(operation, deadline=time.monotonic() + CREATE_SECONDS, stop=self._abort)
        return self._cause(zone, operation)

    def _cause(self, zone: str, operation: Resource) -> ApiError | None:
        """Why an operation failed. A bulkInsert may say only that there are too few VMs; theirs say why."""
        errors = operation_errors(operation)
        if not errors:
            return None
        if group := operation.get("operationGroupId"):
            with contextlib.suppress(ApiError):
                for each in self._client.operation_group(zone, group):
                    errors += operation_errors(each) if each.get("operationType") == "insert" else []
        telling = [error for error in errors if error.rule is not RULES[-1] and error.code != TOO_FEW]
        return min(telling or errors, key=lambda error: _SEVERITY.index(error.action))

    def _confirm(self, zone: str) -> ApiError | None:
        """Counters of operations include VMs that were rolled back; only what can be listed counts."""
        spec, names = self._spec, self._plan.names
        listed = self._client.instances(spec.name).items
        ours = {vm["name"]: vm for vm in listed if labels_of(vm).get(LABEL_ID) == spec.id}
        # A list of all zones may leave one out, and nobody promises that a list shows at once what was made.
        named = self._client.instances_by_name(zone, names - ours.keys())
        ours |= {vm["name"]: vm for vm in named if labels_of(vm).get(LABEL_ID) == spec.id}
        self._instances = [vm for name, vm in ours.items() if name in names]
        if len(self._instances) != len(names):
            message = f"{len(self._instances)} of {self._vms} exist after the operation"
            return ApiError(message=message, code=TOO_FEW, project=self._client.project)
        # VMs in two zones may have one name, so an `up` elsewhere at the same moment was not refused.
        others = [vm for vm in listed if labels_of(vm).get(LABEL_ID) != spec.id]
        if others:
            raise UsageError(
                f"another `up` made a cluster {spec.name} in {zone_of(others[0])} at the same moment",
                hint=f"hvdcloud status --name {spec.name} shows it; else take another --name",
            )
        return None

    def _clear(self, zone: str) -> None:
        """Make sure that nothing of an attempt is left before the next one."""
        if left := self._sweep(zones={zone}).run():
            what = f"{self._vms} could not be made in {zone}, and {counted(len(left), 'object')} may be left there"
            raise TeardownError(what, hint=left[0].delete_with)

    def _final(self, error: ApiError, zone: str) -> HvdcloudError:
        taken = re.search(r"/instances/([-a-z0-9]+)", error.message)
        if error.rule.names == ALREADY_EXISTS and taken:
            self._taken = True
            return NameTakenError(f"the name {taken.group(1)} is taken by another VM in {zone}", hint=error.hint)
        return error.as_user_error(doing=f"create {self._vms} in {zone}")

    def _nowhere(self, failed: Mapping[str, ApiError]) -> HvdcloudError:
        """What each zone has said."""
        full = [error for error in failed.values() if error.rule.error is CapacityError]
        cause = full[0] if full else next(iter(failed.values()))
        why = "no capacity or no quota" if full else cause.cause
        alike = groups(self._plan.settings, self._plan.indices or range(self._spec.nodes))
        kinds = "; ".join(str(group.kind) for group in alike)
        message = f"cannot create {self._vms} ({kinds}) in {counted(len(failed), 'zone')}: {why}"
        details = "\n".join(f"{zone}: {' '.join(str(error).split())}" for zone, error in failed.items())
        if not full or self._only is not None:
            return cause.rule.error(message, hint=cause.hint, details=details)
        hint = cause.hint if cause.metric else f"--wait 6h tries until a zone has room; or {ELSEWHERE}"
        return NoRoomError(message, hint=hint, zones=len(failed), details=details)

    def _make_firewall(self, request: Request) -> None:
        if self._abort.is_set():
            raise AbortedError
        with explained(f"create {request.object}"):
            operation = self._client.insert_firewall(request.body, self._new_request())
            operation = self._client.wait(operation, deadline=time.monotonic() + FIREWALL_SECONDS, stop=self._abort)
            if errors := operation_errors(operation):
                raise errors[0]

    def _new_request(self) -> str:
        request = request_id(self._spec.name, self._spec.id)
        self._requests.add(request)
        return request

    def _report(self, zone: str, step: str, *, stage: Stage = Stage.WORKING) -> None:
        self._on_progress(NodeProgress(object=zone, step=step, stage=stage))


def _last_said(error: ApiError) -> str:
    """`no capacity: ZONE_RESOURCE_POOL_EXHAUSTED`."""
    what = "no quota" if error.metric else "no capacity" if error.rule.error is CapacityError else "not possible"
    return f"{what}: {error.metric or error.label}"
