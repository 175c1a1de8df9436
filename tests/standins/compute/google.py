"""Google's other APIs, as far as `hvdcloud setup` asks them about the same project: which are on, and custom roles.

Requests and answers are checked against each API's own discovery document. Their paths don't collide with each other,
nor with Compute Engine's, so one host serves all of them.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.standins.compute.api import Answer, Request
from tests.standins.compute.auth import Keys
from tests.standins.compute.errors import ApiError
from tests.standins.discovery import Discovery, load

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
    """What a test may change.

    Attributes:
        off: services that are switched off in the project: `iam.googleapis.com`. Compute Engine's heeds it too.
        roles: custom roles by full name; one that was deleted keeps its name.
    """

    def __init__(self, world: Workers, keys: Keys) -> None:
        self._world = world
        self._keys = keys
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """As at the start."""
        with self._lock:
            self.off: set[str] = set()
            self.roles: dict[str, dict[str, Any]] = {}
            self._coming: dict[str, int] = {}

    def answer(self, request: Request) -> Answer | None:
        """None: the path is none of these APIs'."""
        parts = urlsplit(request.target)
        segments = [unquote(segment) for segment in parts.path[1:].split("/")]
        for service, api in documents().items():
            found = api.find(request.http, segments)
            if found is None or found[0].id not in _HANDLERS:
                continue
            method, path = found
            try:
                self._keys.check(request.headers.get("Authorization"))
                query = api.check_parameters(method, path, parse_qs(parts.query, keep_blank_values=True))
                body = api.request(method.request, json.loads(request.body)) if method.request else {}
                self.check_on(f"{service}.googleapis.com")
                with self._lock:
                    value = _HANDLERS[method.id](self, {**query, **path, **body})
                api.response(method.response or "", value)
                return Answer(status=200, body=json.dumps(value).encode())
            except ApiError as error:
                return Answer(status=error.status, body=error.body(), headers=error.headers)
        return None

    def check_on(self, service: str) -> None:
        """Raises ApiError, 403: the API is switched off, or does not answer yet."""
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

    def _project(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        return {"projectId": self._world.project, "projectNumber": self._world.number, "lifecycleState": "ACTIVE"}

    def _enable(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The services answer at the second request after this one."""
        self._coming |= dict.fromkeys(asked["serviceIds"], 2)
        return {"name": "operations/acat.p2-1", "done": False}

    def _role(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if asked["name"] not in self.roles:
            raise ApiError(404, "notFound", f"The role named {asked['name']} was not found.")
        return self.roles[asked["name"]]


_HANDLERS: Mapping[str, Callable[[Google, Mapping[str, Any]], dict[str, Any]]] = {
    "cloudresourcemanager.projects.get": Google._project,
    "iam.projects.roles.get": Google._role,
    "serviceusage.services.batchEnable": Google._enable,
}
