"""The Compute API as this provider uses it. Takes and returns the API's own JSON as plain dictionaries.

Every method retries passing trouble by itself, with the same requestId where something is changed; what it raises is
final. The number of calls does not grow with the number of VMs, save for one delete each.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_ID, LABEL_MANAGED_BY, MANAGED_BY
from hvdcloud.google import batch, http
from hvdcloud.google.credentials import google_credentials
from hvdcloud.google.errors import ApiError, answer_error
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.names import last_segment, zone_of

NAMESPACE = "hvdcloud"
"""Of the guest attributes in which a node tells its status."""
STATUS_BURST = 600
STATUS_PER_SECOND = 1000 / 60
"""Reads of guest attributes; a project may make some 1,500 calls a minute (https://cloud.google.com/compute/api-quota),
and other tools want some of them."""

# A warning that says nothing about what is missing from a list; any other one does.
_HARMLESS = frozenset(
    {"NO_RESULTS_ON_PAGE", "DEPRECATED_RESOURCE_USED", "DEPRECATED_TYPE_USED", "EXPERIMENTAL_TYPE_USED"}
)
_QUICK_SECONDS = 0.5
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """A list over all zones, and the places that did not answer."""

    items: list[dict[str, Any]]
    unseen: tuple[str, ...] = ()
    """`zone us-central1-f`."""


class ComputeClient:
    """One project's Compute Engine. May be used from several threads at once.

    Args:
        credentials: of google.auth.
        endpoint: scheme, host and port of the API; None: Google's.
        retry_seconds: after which a call that keeps failing is given up.
    """

    def __init__(
        self, *, project: str, credentials: Any, endpoint: str | None = None, retry_seconds: float = http.RETRY_SECONDS
    ) -> None:
        self.project = project
        self._home = f"projects/{project}"
        self.transport = http.Transport(
            project=project, credentials=credentials, endpoint=endpoint, retry_seconds=retry_seconds
        )
        """Its `on_retry` is called for every call that failed and will be repeated."""
        self._status_reads = batch.TokenBucket(burst=STATUS_BURST, per_second=STATUS_PER_SECOND)
        self._batch_refused = threading.Event()

    # --- what the project has -------------------------------------------------------------------------------------

    def get_project(self) -> dict[str, Any]:
        """The project with its project-wide quotas."""
        return self.transport.read(self._home)

    def regions(self) -> list[dict[str, Any]]:
        """Every region with its quotas."""
        return self._list("regions")

    def zones(self) -> list[dict[str, Any]]:
        """Every zone and whether it is UP."""
        return self._list("zones")

    def machine_types(self, names: Sequence[str]) -> Aggregated:
        """The machine types of these names, once for each zone that has them."""
        return self._aggregated("machineTypes", _any_of("name", names))

    def accelerator_types(self, names: Sequence[str]) -> Aggregated:
        """The accelerator types of these names, once for each zone that has them."""
        return self._aggregated("acceleratorTypes", _any_of("name", names))

    def subnetworks(self, name: str) -> Aggregated:
        """The subnetworks of this name, one for each region that has it."""
        return self._aggregated("subnetworks", _any_of("name", [name]))

    def image_from_family(self, project: str, family: str) -> dict[str, Any]:
        """The newest VM image of a family that is not deprecated."""
        return self.transport.read(f"projects/{project}/global/images/family/{family}")

    # --- firewall rules -------------------------------------------------------------------------------------------

    def firewalls(self) -> list[dict[str, Any]]:
        """Every firewall rule of the project."""
        return self._list("global/firewalls")

    def insert_firewall(self, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make a firewall rule; returns the operation."""
        return self.transport.call(
            "Firewalls", "insert_unary", {"request_id": request_id}, body=("firewall_resource", "Firewall", body)
        )

    def delete_firewall(self, name: str, request_id: str) -> dict[str, Any] | None:
        """Start to delete a firewall rule; returns the operation, None if it is gone already."""
        return self._delete("Firewalls", {"firewall": name, "request_id": request_id})

    # --- VMs and disks --------------------------------------------------------------------------------------------

    def instances(self, cluster: str | None) -> Aggregated:
        """hvdcloud's VMs in all zones; of one cluster, or of all."""
        return self._aggregated("instances", _labels(cluster))

    def instances_named(self, names: Sequence[str]) -> Aggregated:
        """VMs of these names, also those of other tools. The names go into the request's URL: a few dozen at most."""
        return self._aggregated("instances", _any_of("name", names))

    def instances_in(self, zone: str, cluster: str, cluster_id: str) -> list[dict[str, Any]]:
        """One cluster's VMs in one zone."""
        return self._list(f"zones/{zone}/instances", _labels(cluster, cluster_id))

    def instances_by_name(self, zone: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """Those of these VMs of a zone that exist, whatever a list may still leave out; many in few calls."""
        wanted = sorted(names)
        found: list[dict[str, Any]] = []

        def attempt(chunk: Sequence[str]) -> list[dict[str, Any]]:
            answers = self._read([f"{http.BASE_PATH}{self._home}/zones/{zone}/instances/{name}" for name in chunk])
            for answer in answers:
                if answer.status >= 400 and answer.status != 404:
                    raise answer_error(answer.status, answer.body, project=self.project)
            return [json.loads(answer.body) for answer in answers if answer.status < 400]

        for start in range(0, len(wanted), batch.MAX_CALLS):
            chunk = wanted[start : start + batch.MAX_CALLS]
            found += self.transport.persist(partial(attempt, chunk), what="instances.get")
        return found

    def disks(self, cluster: str | None) -> Aggregated:
        """hvdcloud's disks in all zones; of one cluster, or of all."""
        return self._aggregated("disks", _labels(cluster))

    def bulk_insert(self, zone: str, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make all VMs of `body` or none; returns the operation.

        The same `request_id` again returns the same operation and makes nothing twice.
        """
        return self.transport.call(
            "Instances",
            "bulk_insert_unary",
            {"zone": zone, "request_id": request_id},
            body=("bulk_insert_instance_resource_resource", "BulkInsertInstanceResource", body),
        )

    def delete_instance(self, zone: str, name: str, request_id: str) -> dict[str, Any] | None:
        """Start to delete a VM; returns the operation, None if it is gone already."""
        return self._delete("Instances", {"zone": zone, "instance": name, "request_id": request_id})

    def delete_disk(self, zone: str, name: str, request_id: str) -> dict[str, Any] | None:
        """Start to delete a disk; returns the operation, None if it is gone already."""
        return self._delete("Disks", {"zone": zone, "disk": name, "request_id": request_id})

    def set_labels(self, resource: Mapping[str, Any], labels: Mapping[str, str], request_id: str) -> dict[str, Any]:
        """Start to replace all labels of a VM or a disk, as `resource` was listed; returns the operation.

        If its labels have changed since, the API refuses.
        """
        service, what = "Instances", "instance"
        field, message = "instances_set_labels_request_resource", "InstancesSetLabelsRequest"
        if resource.get("kind") == "compute#disk":
            service, what = "Disks", "resource"
            field, message = "zone_set_labels_request_resource", "ZoneSetLabelsRequest"
        fields = {"zone": zone_of(resource), "request_id": request_id, what: resource["name"]}
        body = {"labels": dict(labels), "labelFingerprint": resource.get("labelFingerprint", "")}
        return self.transport.call(service, "set_labels_unary", fields, body=(field, message, body))

    # --- operations -----------------------------------------------------------------------------------------------

    def wait(
        self,
        operation: Mapping[str, Any],
        *,
        deadline: float,
        stop: threading.Event | None = None,
        stop_seconds: float = _STOP_SECONDS,
    ) -> dict[str, Any]:
        """Wait until an operation is DONE; whether it succeeded is for `operation_errors` to say.

        Args:
            deadline: of time.monotonic(): when to give up.
            stop: give up `stop_seconds` after it is set.

        Raises:
            ApiError: reason `deadline` or `stopped`: it was not DONE by then.
        """
        current = dict(operation)
        service, fields = _operation_place(operation)
        while current.get("status") != "DONE":
            left = deadline - time.monotonic()
            stopped = stop is not None and stop.is_set()
            if left <= 0 or stopped:
                raise ApiError(
                    message=f"operation {current['name']} is still {current.get('status', 'PENDING')}",
                    reason="stopped" if stopped else "deadline",
                    project=self.project,
                )
            asked = time.monotonic()
            seconds = min(http.WAIT_SECONDS if stop is None else stop_seconds, left + 1)
            patience = http.Patience(seconds=left, timeouts=False, stop=stop)
            try:
                current = self.transport.call(service, "wait", fields, read_seconds=seconds, patience=patience)
            except ApiError as error:
                # An answer that did not come in time is not a failure of the operation: the deadline decides.
                if error.reason != "timeout":
                    raise
            # A server under load may answer at once and must not be asked in a tight loop (discovery document).
            if current.get("status") != "DONE" and time.monotonic() - asked < _QUICK_SECONDS:
                time.sleep(max(0.0, min(_QUICK_SECONDS, deadline - time.monotonic())))
        return current

    def operation_group(self, zone: str, group_id: str) -> list[dict[str, Any]]:
        """The operations that belong to one bulkInsert: one `insert` for each VM, with its own errors."""
        return self._list(f"zones/{zone}/operations", f"operationGroupId={group_id}")

    def operations_in_flight(self) -> Aggregated:
        """Every operation of the project that is not DONE."""
        return self._aggregated("operations", "status!=DONE")

    # --- what a node tells ----------------------------------------------------------------------------------------

    def guest_attributes(self, zone: str, names: Sequence[str]) -> dict[str, dict[str, str] | None]:
        """What each VM has written under `hvdcloud/`, for many VMs in few calls.

        Returns:
            name → {"status": …}; None: nothing written yet. A VM that does not exist (any more) is not in it.
        """
        chunks = [names[start : start + batch.MAX_CALLS] for start in range(0, len(names), batch.MAX_CALLS)]
        found: dict[str, dict[str, str] | None] = {}
        for part in side_by_side(lambda chunk: self._statuses(zone, chunk), chunks, only_reads=True):
            found.update(part)
        return found

    def serial_output(self, zone: str, name: str, start: int = -4000) -> str:
        """The VM's boot log, from byte `start`; negative: that many bytes from the end."""
        path = f"{self._home}/zones/{zone}/instances/{name}/serialPort"
        contents: str = self.transport.read(path, {"start": start}).get("contents", "")
        return contents

    def _statuses(self, zone: str, names: Sequence[str]) -> dict[str, dict[str, str] | None]:
        found: dict[str, dict[str, str] | None] = {}
        pending = list(names)

        def attempt() -> None:
            """Asks for those that are still unknown; a call that failed fails the attempt when all are counted."""
            failed: ApiError | None = None
            for name, answer in zip(tuple(pending), self._read_statuses(zone, pending), strict=True):
                error = answer_error(answer.status, answer.body, project=self.project) if answer.status >= 400 else None
                if error is None:
                    found[name] = _namespace(json.loads(answer.body))
                elif error.status == 404 and "'Guest Attribute'" in error.message:
                    found[name] = None
                elif error.status != 404:
                    failed = error
                    continue
                pending.remove(name)
            if failed is not None:
                raise failed

        self.transport.persist(attempt, what="getGuestAttributes")
        return found

    def _read_statuses(self, zone: str, names: Sequence[str]) -> list[http.Answer]:
        self._status_reads.take(len(names))
        prefix = f"{http.BASE_PATH}{self._home}/zones/{zone}/instances"
        return self._read([f"{prefix}/{name}/getGuestAttributes?queryPath={NAMESPACE}%2F" for name in names])

    def _read(self, paths: Sequence[str]) -> list[http.Answer]:
        """The answers to a GET of each path, in one request where the server takes batches."""
        if not self._batch_refused.is_set():
            content_type, body = batch.encode(paths)
            answer = self.transport.send("POST", batch.PATH, body=body, content_type=content_type)
            if answer.status < 400:
                return batch.decode(answer, calls=len(paths))
            if answer.status not in batch.REFUSED:
                raise answer_error(answer.status, answer.body, project=self.project)
            self._batch_refused.set()
        return side_by_side(lambda path: self.transport.send("GET", path), paths)

    # --- how ------------------------------------------------------------------------------------------------------

    def _list(self, collection: str, matching: str | None = None) -> list[dict[str, Any]]:
        """A list of one place. One that is known to be incomplete is none: asked again, then an error."""

        def complete(page: dict[str, Any]) -> None:
            code = page.get("warning", {}).get("code", "NO_RESULTS_ON_PAGE")
            if code not in _HARMLESS:
                message = page["warning"].get("message", f"{collection} is incomplete")
                raise ApiError(message=message, status=503, code=code, project=self.project)

        parameters = {"filter": matching} if matching else {}
        pages = self.transport.pages(f"projects/{self.project}/{collection}", parameters, check=complete)
        return [item for page in pages for item in page.get("items", [])]

    def _aggregated(self, collection: str, matching: str | None = None) -> Aggregated:
        items: list[dict[str, Any]] = []
        unseen: list[str] = []
        parameters = {"filter": matching} if matching else {}
        for page in self.transport.pages(f"projects/{self.project}/aggregated/{collection}", parameters):
            unseen += [_place(scope) for scope in page.get("unreachables", [])]
            if page.get("warning", {}).get("code", "NO_RESULTS_ON_PAGE") not in _HARMLESS:
                unseen.append(f"part of project {self.project} ({page['warning'].get('message', collection)})")
            for scope, content in page.get("items", {}).items():
                items += content.get(collection, [])
                if content.get("warning", {}).get("code", "NO_RESULTS_ON_PAGE") not in _HARMLESS:
                    unseen.append(_place(scope))
        return Aggregated(items=items, unseen=tuple(dict.fromkeys(unseen)))

    def _delete(self, service: str, fields: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            return self.transport.call(service, "delete_unary", fields)
        except ApiError as error:
            if error.status == 404:
                return None
            raise


def connect_client(*, project: str | None, endpoint: str | None = None) -> ComputeClient:
    """The Compute API with this machine's credentials. `project` and the errors are those of `google_credentials`."""
    credentials, chosen = google_credentials(project)
    return ComputeClient(project=chosen, credentials=credentials, endpoint=endpoint)


def _labels(cluster: str | None, cluster_id: str | None = None) -> str:
    """AIP-160 filter: hvdcloud's, or one cluster's, objects."""
    wanted = {LABEL_MANAGED_BY: MANAGED_BY, LABEL_CLUSTER: cluster, LABEL_ID: cluster_id}
    return " AND ".join(f'(labels.{key}="{value}")' for key, value in wanted.items() if value is not None)


def _any_of(field: str, values: Iterable[str]) -> str:
    return " OR ".join(f'({field}="{value}")' for value in values)


def _place(scope: str) -> str:
    """`zone us-central1-f` of `zones/us-central1-f` or `projects/p/zones/us-central1-f`."""
    kind, _, name = scope.rpartition("/")
    return f"{last_segment(kind).removesuffix('s')} {name}" if kind else name


def _operation_place(operation: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    fields = {"operation": operation["name"]}
    for place in ("zone", "region"):
        if place in operation:
            return f"{place.title()}Operations", {**fields, place: last_segment(operation[place])}
    return "GlobalOperations", fields


def _namespace(answer: Mapping[str, Any]) -> dict[str, str]:
    entries = answer.get("queryValue", {}).get("items", [])
    return {entry["key"]: entry["value"] for entry in entries if entry.get("namespace") == NAMESPACE}
