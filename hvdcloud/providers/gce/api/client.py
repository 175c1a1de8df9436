"""The Compute API as this provider uses it: google-cloud-compute, and plain dictionaries in the API's own JSON.

Every method retries passing trouble by itself, with the same requestId where something is changed; what it raises is
final. Two things are not the library's. Its retries are off: it never repeats a change, and a read after 503 alone. And
operations are waited for here: `ExtendedOperation.result()` asks Google's own endpoint alone, and calls an operation
that failed without an HTTP status a success.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from hvdcloud.cluster.model import LABEL_CLUSTER, LABEL_MANAGED_BY, MANAGED_BY
from hvdcloud.google import http
from hvdcloud.google.credentials import google_credentials
from hvdcloud.google.errors import ApiError, answer_error
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.gce.names import last_segment, zone_of

T = TypeVar("T")

NAMESPACE = "hvdcloud"
"""Of the guest attributes in which a node tells its status."""
WAIT_SECONDS = 150.0
"""`operations.wait` answers within 2 minutes (discovery document)."""
STOP_SECONDS = 5.0
"""The same, where waiting may be told to stop."""

# A warning that says nothing about what is missing from a list; any other one does.
_HARMLESS = frozenset(
    {"NO_RESULTS_ON_PAGE", "DEPRECATED_RESOURCE_USED", "DEPRECATED_TYPE_USED", "EXPERIMENTAL_TYPE_USED"}
)
_QUICK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregated:
    """A list over all zones, and the places that did not answer."""

    items: list[dict[str, Any]]
    unseen: tuple[str, ...] = ()
    """`zone us-central1-f`."""


class ComputeClient(http.ApiCalls):
    """One project's Compute Engine. May be used from several threads at once."""

    def __init__(
        self, *, project: str, credentials: Any, endpoint: str | None = None, retry_seconds: float = http.RETRY_SECONDS
    ) -> None:
        super().__init__(project=project, credentials=credentials, endpoint=endpoint, retry_seconds=retry_seconds)
        self._services: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get_project(self) -> dict[str, Any]:
        """The project with its project-wide quotas."""
        return self._call("Projects", "get")

    def regions(self) -> list[dict[str, Any]]:
        """Every region with its quotas."""
        return self._list("Regions")

    def subnetworks(self, name: str) -> Aggregated:
        """The subnetworks of this name, one for each region that has it."""
        return self._aggregated("Subnetworks", "subnetworks", f'name="{name}"')

    def reservations(self, project: str, name: str) -> list[dict[str, Any]]:
        """The reservations of this name, in whatever zones, of a project that may be another one."""
        found = self._aggregated("Reservations", "reservations", f'name="{name}"', project=project)
        if found.unseen and not found.items:
            place = ", ".join(found.unseen)
            raise ApiError(message=f"{place} did not answer", status=503, code="INCOMPLETE", project=project)
        return found.items

    def future_reservations(self, project: str, zone: str) -> list[dict[str, Any]]:
        """The requests by which reservations of a zone were made."""
        return self._list("FutureReservations", project=project, zone=zone)

    def image_from_family(self, project: str, family: str) -> dict[str, Any]:
        """The newest VM image of a family that is not deprecated."""
        return self._call("Images", "get_from_family", project=project, family=family)

    def firewalls(self) -> list[dict[str, Any]]:
        """Every firewall rule of the project."""
        return self._list("Firewalls")

    def insert_firewall(self, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make a firewall rule; returns the operation."""
        rule = _message("Firewall", body)
        return self._call("Firewalls", "insert_unary", request_id=request_id, firewall_resource=rule)

    def placements(self) -> Aggregated:
        """Every resource policy of the project, which is of one region."""
        return self._aggregated("ResourcePolicies", "resourcePolicies", "")

    def insert_placement(self, region: str, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make a placement policy; returns the operation."""
        fields: dict[str, Any] = {"region": region, "request_id": request_id}
        fields["resource_policy_resource"] = _message("ResourcePolicy", body)
        return self._call("ResourcePolicies", "insert_unary", **fields)

    def instances(self, cluster: str | None) -> Aggregated:
        """hvdcloud's VMs in all zones; of one cluster, or of all."""
        return self._aggregated("Instances", "instances", _labels(cluster))

    def instances_by_name(self, zone: str, names: Iterable[str]) -> list[dict[str, Any]]:
        """Those of these VMs of a zone that exist, whatever a list may still leave out; one call for each."""

        def get(name: str) -> dict[str, Any] | None:
            return _unless_gone(partial(self._call, "Instances", "get", zone=zone, instance=name))

        return [vm for vm in side_by_side(get, sorted(names), only_reads=True) if vm is not None]

    def disks(self, cluster: str | None) -> Aggregated:
        """hvdcloud's disks in all zones; of one cluster, or of all."""
        return self._aggregated("Disks", "disks", _labels(cluster))

    def bulk_insert(self, zone: str, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make all VMs of `body` or none; returns the operation.

        The same `request_id` again returns the same operation and makes nothing twice.
        """
        resource = _message("BulkInsertInstanceResource", body)
        return self._call(
            "Instances",
            "bulk_insert_unary",
            zone=zone,
            request_id=request_id,
            bulk_insert_instance_resource_resource=resource,
        )

    def groups(self) -> Aggregated:
        """Every managed instance group of the project that is of one zone."""
        return self._aggregated("InstanceGroupManagers", "instanceGroupManagers", "")

    def templates(self) -> list[dict[str, Any]]:
        """Every instance template of the project that is of no region."""
        return self._list("InstanceTemplates")

    def resize_requests(self, zone: str, group: str) -> list[dict[str, Any]]:
        """The resize requests of a group; none if it is gone."""
        ask = partial(self._list, "InstanceGroupManagerResizeRequests", zone=zone, instance_group_manager=group)
        return _unless_gone(ask) or []

    def insert_template(self, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make an instance template; returns the operation."""
        resource = _message("InstanceTemplate", body)
        return self._call(
            "InstanceTemplates", "insert_unary", request_id=request_id, instance_template_resource=resource
        )

    def insert_group(self, zone: str, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make a managed instance group; returns the operation."""
        fields: dict[str, Any] = {"zone": zone, "request_id": request_id}
        fields["instance_group_manager_resource"] = _message("InstanceGroupManager", body)
        return self._call("InstanceGroupManagers", "insert_unary", **fields)

    def insert_resize_request(self, zone: str, group: str, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
        """Start to make a resize request, which then waits by itself; returns the operation."""
        fields: dict[str, Any] = {"zone": zone, "instance_group_manager": group, "request_id": request_id}
        resource = _message("InstanceGroupManagerResizeRequest", body)
        fields["instance_group_manager_resize_request_resource"] = resource
        return self._call("InstanceGroupManagerResizeRequests", "insert_unary", **fields)

    def cancel_resize_request(self, zone: str, group: str, name: str, request_id: str) -> dict[str, Any]:
        """Start to take a resize request out of the queue; returns the operation."""
        fields = {"zone": zone, "instance_group_manager": group, "resize_request": name, "request_id": request_id}
        return self._call("InstanceGroupManagerResizeRequests", "cancel_unary", **fields)

    def exists(self, service: str, **names: str) -> bool:
        """Whether one object of a service exists, whatever a list may still leave out; `names` as for `delete`."""
        return _unless_gone(partial(self._call, service, "get", **names)) is not None

    def delete(self, service: str, request_id: str, **names: str) -> dict[str, Any] | None:
        """Start to delete one object of a service, such as `Instances`; returns the operation, None if it is gone.

        Args:
            names: its zone or region, if it is of one, and its own: `zone="us-central1-a", instance="digits-0"`.
        """
        return _unless_gone(partial(self._call, service, "delete_unary", request_id=request_id, **names))

    def set_labels(self, resource: Mapping[str, Any], labels: Mapping[str, str], request_id: str) -> dict[str, Any]:
        """Start to replace all labels of a VM or a disk, as `resource` was listed; returns the operation.

        If its labels have changed since, the API refuses.
        """
        body = {"labels": dict(labels), "labelFingerprint": resource.get("labelFingerprint", "")}
        fields: dict[str, Any] = {"zone": zone_of(resource), "request_id": request_id}
        if resource.get("kind") == "compute#disk":
            fields["zone_set_labels_request_resource"] = _message("ZoneSetLabelsRequest", body)
            return self._call("Disks", "set_labels_unary", resource=resource["name"], **fields)
        fields["instances_set_labels_request_resource"] = _message("InstancesSetLabelsRequest", body)
        return self._call("Instances", "set_labels_unary", instance=resource["name"], **fields)

    def wait(
        self, operation: Mapping[str, Any], *, deadline: float, stop: threading.Event | None = None
    ) -> dict[str, Any]:
        """Wait until an operation is DONE; whether it succeeded is for `operation_errors` to say.

        Args:
            deadline: of time.monotonic(): when to give up.
            stop: give up soon after it is set.

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
            seconds = min(WAIT_SECONDS if stop is None else STOP_SECONDS, left + 1)
            send = partial(self._send, service, "wait", fields, read_seconds=seconds)
            try:
                current = self.persist(send, what=f"{service}.wait", seconds=left, timeouts=False, stop=stop)
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
        return self._list("ZoneOperations", zone=zone, filter=f"operationGroupId={group_id}")

    def operations_in_flight(self) -> Aggregated:
        """Every operation of the project that is not DONE."""
        return self._aggregated("GlobalOperations", "operations", "status!=DONE")

    def guest_attributes(self, zone: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        """What each VM has written under `hvdcloud/`; one call for each.

        Returns:
            name → {"status": …}; empty: nothing written yet. A VM that does not exist (any more) is not in it.
        """

        def get(name: str) -> dict[str, str] | None:
            fields = {"zone": zone, "instance": name, "query_path": f"{NAMESPACE}/"}
            try:
                answer = self._call("Instances", "get_guest_attributes", **fields)
            except ApiError as error:
                if error.status != 404:
                    raise
                return {} if "'Guest Attribute'" in error.message else None
            entries = answer.get("queryValue", {}).get("items", [])
            return {entry["key"]: entry["value"] for entry in entries if entry.get("namespace") == NAMESPACE}

        found = zip(names, side_by_side(get, names, only_reads=True), strict=True)
        return {name: written for name, written in found if written is not None}

    def serial_output(self, zone: str, name: str) -> str:
        """The last 4,000 bytes of the VM's boot log."""
        answer = self._call("Instances", "get_serial_port_output", zone=zone, instance=name, start=-4000)
        return str(answer.get("contents", ""))

    def _call(self, service: str, method: str, **fields: Any) -> dict[str, Any]:
        """One method of one service, such as `Instances` `bulk_insert_unary`; the answer as the API's own JSON."""
        what = f"{service}.{method.removesuffix('_unary')}"
        return self.persist(partial(self._send, service, method, fields), what=what)

    def _list(self, service: str, **fields: Any) -> list[dict[str, Any]]:
        """A list of one place. One that is known to be incomplete is none: asked again, then an error."""

        def attempt() -> list[dict[str, Any]]:
            pages = self._send_list(service, "list", fields)
            for page in pages:
                if warning := _warning(page):
                    raise ApiError(message=warning, status=503, code="INCOMPLETE", project=self.project)
            return [item for page in pages for item in page.get("items", [])]

        return self.persist(attempt, what=f"{service}.list")

    def _aggregated(self, service: str, collection: str, matching: str, **fields: Any) -> Aggregated:
        """A list of all zones or regions, and those that did not answer."""
        items: list[dict[str, Any]] = []
        unseen: list[str] = []
        asked = {"filter": matching} if matching else {}
        attempt = partial(self._send_list, service, "aggregated_list", {**asked, **fields})
        for page in self.persist(attempt, what=f"{service}.aggregated_list"):
            unseen += [_place(scope) for scope in page.get("unreachables", [])]
            if warning := _warning(page):
                unseen.append(f"part of project {self.project} ({warning})")
            for scope, content in page.get("items", {}).items():
                items += content.get(collection, [])
                if _warning(content):
                    unseen.append(_place(scope))
        return Aggregated(items=items, unseen=tuple(dict.fromkeys(unseen)))

    def _send(
        self, service: str, method: str, fields: Mapping[str, Any], *, read_seconds: float = http.READ_SECONDS
    ) -> dict[str, Any]:
        with _library_errors(self.project):
            return _plain(self._ask(service, method, fields, read_seconds))

    def _send_list(self, service: str, method: str, fields: Mapping[str, Any]) -> list[dict[str, Any]]:
        with _library_errors(self.project):
            return [_plain(page) for page in self._ask(service, method, fields, http.READ_SECONDS).pages]

    def _ask(self, service: str, method: str, fields: Mapping[str, Any], read_seconds: float) -> Any:
        from google.api_core.timeout import ConstantTimeout

        timeout = ConstantTimeout((http.CONNECT_SECONDS, read_seconds))
        ask = getattr(self._service(service), method)
        return ask(request={"project": self.project, **fields}, retry=None, timeout=timeout)

    def _service(self, name: str) -> Any:
        from google.api_core.client_options import ClientOptions
        from google.cloud import compute_v1

        with self._lock:
            if name not in self._services:
                self._services[name] = getattr(compute_v1, f"{name}Client")(
                    credentials=self.credentials, client_options=ClientOptions(api_endpoint=self.endpoint)
                )
            return self._services[name]


def connect_client(*, project: str | None, retry_seconds: float = http.RETRY_SECONDS) -> ComputeClient:
    """The Compute API with this machine's credentials. `project` and the errors are those of `google_credentials`."""
    credentials, chosen = google_credentials(project)
    return ComputeClient(project=chosen, credentials=credentials, retry_seconds=retry_seconds)


@contextlib.contextmanager
def _library_errors(project: str) -> Iterator[None]:
    """Turns what the library makes of an HTTP answer into `ApiError`."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.protobuf.json_format import ParseError

    try:
        yield
    except GoogleAPICallError as error:
        body = error.response.content if error.response is not None else error.message
        raise answer_error(int(error.code or 0), body, project=project) from error
    except ParseError as error:
        # A proxy or a captive portal that says 200.
        raise ApiError(
            message="the answer is not the API's JSON", status=502, reason="notJson", project=project
        ) from error


def _message(name: str, content: Mapping[str, Any]) -> Any:
    """A body of the library, of the API's own JSON. Raises ParseError: it has a key that the API does not know."""
    from google.cloud import compute_v1

    return getattr(compute_v1, name).from_json(json.dumps(content))


def _plain(answer: Any) -> dict[str, Any]:
    """An answer of the library as the API's own JSON."""
    content: dict[str, Any] = type(answer).to_dict(
        answer,
        use_integers_for_enums=False,
        preserving_proto_field_name=False,
        always_print_fields_with_no_presence=False,
    )
    return content


def _unless_gone(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except ApiError as error:
        if error.status == 404:
            return None
        raise


def _warning(content: Mapping[str, Any]) -> str:
    """What an answer says to be missing from it; empty: nothing."""
    warning = content.get("warning", {})
    if warning.get("code", "NO_RESULTS_ON_PAGE") in _HARMLESS:
        return ""
    return str(warning.get("message") or warning["code"])


def _labels(cluster: str | None) -> str:
    """AIP-160 filter: hvdcloud's, or one cluster's, objects."""
    ours = f'(labels.{LABEL_MANAGED_BY}="{MANAGED_BY}")'
    return ours if cluster is None else f'{ours} AND (labels.{LABEL_CLUSTER}="{cluster}")'


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
