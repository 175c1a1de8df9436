"""Google's other APIs, as far as `hvdcloud doctor` and `setup` ask them about the same project.

Resource Manager, IAM and Service Usage.

Requests and answers are checked against each API's own discovery document. Their paths don't collide with each other,
nor with Compute Engine's, so one host serves all of them.
"""

from __future__ import annotations

import functools
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.standins.compute.access import Access
from tests.standins.compute.api import Answer, Entry, Log, Request
from tests.standins.compute.auth import Keys
from tests.standins.compute.errors import STATUS_NAMES, ApiError, CutError, denied
from tests.standins.compute.faults import Faults, error_of
from tests.standins.discovery import Discovery, Method, load

if TYPE_CHECKING:
    from tests.standins.compute.state import Workers

_DOCUMENTS = ("cloudresourcemanager.v1", "iam.v1", "serviceusage.v1")
_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


@functools.cache
def documents() -> Mapping[str, Discovery]:
    """Service (`iam`) → its API as google-api-python-client carries it."""
    return {
        name.partition(".")[0]: load(name, refuse=lambda reason, message: ApiError(400, reason, message))
        for name in _DOCUMENTS
    }


class Google:
    """What a test may change: which APIs are off, who pays, what is there.

    Attributes:
        off: services that are switched off in the project: `iam.googleapis.com`. Compute Engine's heeds it too.
        billing: the project has a billing account that is open; without one, Compute Engine's API refuses.
        roles: custom roles by full name; one that was deleted keeps its name.
        gone: e-mail addresses of service accounts that are not there; every other one is.
    """

    def __init__(self, world: Workers, keys: Keys, access: Access, *, faults: Faults, log: Log) -> None:
        self._world = world
        self._keys = keys
        self._access = access
        self._faults = faults
        self._log = log
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """As at the start."""
        with self._lock:
            self.off: set[str] = set()
            self.billing = True
            self.gone: set[str] = set()
            self.roles: dict[str, dict[str, Any]] = {}
            self._coming: dict[str, int] = {}

    def answer(self, request: Request) -> Answer | None:
        """None: the path is none of these APIs'.

        Raises:
            CutError: the connection is to end without an answer.
        """
        parts = urlsplit(request.target)
        segments = [unquote(segment) for segment in parts.path[1:].split("/")]
        for service, api in documents().items():
            found = api.find(request.http, segments)
            if found is not None and found[0].id in _HANDLERS:
                return self._logged(request, service, *found)
        return None

    def _logged(self, request: Request, service: str, method: Method, path: Mapping[str, str]) -> Answer:
        entry = self._log.add(request)
        entry.method = method.id
        try:
            answer = Answer(status=200, body=json.dumps(self._value(request, entry, service, method, path)).encode())
        except ApiError as error:
            answer = Answer(status=error.status, body=_body(error), headers=error.headers)
        except CutError:
            entry.status = 0
            raise
        entry.status = answer.status
        return answer

    def _value(
        self, request: Request, entry: Entry, service: str, method: Method, path: Mapping[str, str]
    ) -> dict[str, Any]:
        api = documents()[service]
        user = self._keys.check(request.headers.get("Authorization"))
        query = api.check_parameters(method, path, parse_qs(urlsplit(request.target).query, keep_blank_values=True))
        entry.body = body = _content(api, method, request)
        fault = self._faults.of_request(method.id, zone=None, instance=None, part=False)
        time.sleep(fault.get("delay", 0.0))
        if "reset" in fault:
            raise CutError
        if "status" in fault:
            raise error_of(fault)
        if fault.get("hold") and not self._faults.hold("before", method.id, request.connection):
            raise CutError
        self.check_on(f"{service}.googleapis.com")
        with self._lock:
            value = _HANDLERS[method.id](self, user, {**query, **path, **body})
        api.response(method.response or "", value)
        return value

    def check_on(self, service: str) -> None:
        """
        Raises:
            ApiError: 403, the API is switched off, or nobody pays.
        """
        if service == "compute.googleapis.com" and not self.billing:
            project = f"{self._world.project} (#{self._world.number})"
            raise ApiError(403, "forbidden", f"Project {project} has billing disabled. Please enable it.")
        if service not in self.off:
            return
        if service in self._coming:
            self._coming[service] -= 1
            if not self._coming[service]:
                self.off.discard(service)
        project = self._world.number
        message = (
            f"{service} has not been used in project {project} before or it is disabled. Enable it by visiting "
            f"https://console.developers.google.com/apis/api/{service}/overview?project={project} then retry."
        )
        info = {
            "@type": _INFO,
            "reason": "SERVICE_DISABLED",
            "domain": "googleapis.com",
            "metadata": {"consumer": f"projects/{project}", "service": service},
        }
        raise ApiError(403, "accessNotConfigured", message, details=[info])

    # -- methods -------------------------------------------------------------------------------------------------------

    def _project(self, user: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"projectId": self._world.project, "projectNumber": self._world.number, "lifecycleState": "ACTIVE"}

    def _enable(self, user: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The services answer at the second request after this one."""
        self._coming |= dict.fromkeys(asked["serviceIds"], 2)
        return {"name": "operations/acat.p2-1", "done": False}

    def _role(self, user: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["name"] not in self.roles:
            raise ApiError(404, "notFound", f"The role named {asked['name']} was not found.")
        return self.roles[asked["name"]]

    def _test_project(self, user: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["resource"] not in (self._world.project, self._world.number):
            # Resource Manager does not say whether a project is not there, or not the caller's to see.
            raise denied("resourcemanager.projects.get", f"projects/{asked['resource']}", service="")
        return self._test(user, f"projects/{self._world.project}", asked)

    def _test_account(self, user: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        email = asked["resource"].rpartition("/")[2]
        if email in self.gone:
            raise ApiError(404, "notFound", "Unknown service account")
        return self._test(user, f"projects/{self._world.project}/serviceAccounts/{email}", asked)

    def _test(self, user: str, resource: str, asked: Mapping[str, Any]) -> dict[str, Any]:
        wanted = asked.get("permissions", [])
        held = [permission for permission in wanted if self._access.may(user, permission, resource=resource)]
        return {"permissions": held} if held else {}


_HANDLERS: Mapping[str, Callable[[Google, str, Mapping[str, Any]], dict[str, Any]]] = {
    "cloudresourcemanager.projects.get": Google._project,
    "iam.projects.roles.get": Google._role,
    "serviceusage.services.batchEnable": Google._enable,
    "cloudresourcemanager.projects.testIamPermissions": Google._test_project,
    "iam.projects.serviceAccounts.testIamPermissions": Google._test_account,
}


def _content(api: Discovery, method: Method, request: Request) -> dict[str, Any]:
    if method.request is None:
        if request.body.strip():
            raise ApiError(400, "invalid", f"{method.id} takes no body")
        return {}
    if (request.headers.get("Content-Type") or "").partition(";")[0].strip() != "application/json":
        raise ApiError(400, "invalid", f"Not application/json: '{request.headers.get('Content-Type')}'")
    try:
        value = json.loads(request.body)
    except ValueError:
        raise ApiError(400, "invalid", "Invalid JSON payload received.") from None
    checked: dict[str, Any] = api.request(method.request, value)
    return checked


def _body(error: ApiError) -> bytes:
    """As these APIs have it: without Compute Engine's older `errors`."""
    content: dict[str, Any] = {
        "code": error.status,
        "message": error.message,
        "status": STATUS_NAMES.get(error.status, "UNKNOWN"),
    }
    return json.dumps({"error": {**content, **({"details": error.details} if error.details else {})}}).encode()
