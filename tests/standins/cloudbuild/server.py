"""The server: routes, who may ask, the schema, the fault plan; and what a test in the same process commands it with."""

from __future__ import annotations

import functools
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from tests.standins.cloudbuild.build import Build, matches, new_build
from tests.standins.cloudbuild.errors import body_of, invalid, not_found, not_implemented
from tests.standins.cloudbuild.storage import Storage
from tests.standins.cloudbuild.worker import Worker
from tests.standins.compute.auth import Keys, TokenError
from tests.standins.compute.errors import ApiError, CutError
from tests.standins.compute.faults import Faults, error_of
from tests.standins.discovery import Discovery, Method, SchemaError, load
from tests.support.http_server import Asked, Reply, answering

NUMBER = "123456789012"
"""The project's."""
BUILDER = f"{NUMBER}@cloudbuild.gserviceaccount.com"
"""The account that builds run as, unless they name another."""
OPERATION = "type.googleapis.com/google.devtools.cloudbuild.v1.BuildOperationMetadata"
_PLACE = re.compile(r"projects/([^/]+)/locations/([^/]+)(?:/builds/([^/]+))?")
_LOCATION = re.compile(r"global|[a-z]+-[a-z]+[0-9]+")
_MOST_LISTED = 1000


@functools.cache
def discovery() -> Discovery:
    """Cloud Build v1 as google-api-python-client carries it."""
    return load("cloudbuild.v1", refuse=lambda _, message: invalid(message))


@dataclass(slots=True, kw_only=True)
class Entry:
    """One request in the log. `status`: 0 if the connection was cut."""

    method: str
    status: int
    body: Any


class CloudBuildServer:
    """Cloud Build for one project; use it as a context manager.

    Args:
        storage: URL of the stand-in of Cloud Storage.
        keys: whose tokens count; None: its own, see `credentials_file`.
        queue_seconds: how long a build is QUEUED.
        time_scale: by which every build's timeouts are multiplied (0.001: an hour lasts 3.6 s).
        log_seconds: between two writes of a log.

    Attributes:
        faults: the fault plan of requests, as the one of tests/standins/compute.
        ends: of the builds to come, one after the other: the status that a build has at the end without doing anything.
        entries: the requests.
    """

    def __init__(
        self,
        storage: str,
        *,
        project: str = "test-project",
        keys: Keys | None = None,
        queue_seconds: float = 0.0,
        time_scale: float = 1.0,
        log_seconds: float = 0.1,
    ) -> None:
        self.project = project
        self.keys = keys or Keys(project=project)
        self.faults = Faults()
        self.ends: list[str] = []
        self.entries: list[Entry] = []
        self.queue_seconds = queue_seconds
        self.time_scale = time_scale
        self.url = ""
        self._storage = storage
        self._log_seconds = log_seconds
        self._lock = threading.Lock()
        self._builds: dict[str, Build] = {}
        self._threads: list[threading.Thread] = []
        self._stack = ExitStack()

    def __enter__(self) -> CloudBuildServer:
        self.url = self._stack.enter_context(answering(self._answer))
        return self

    def __exit__(self, *_: object) -> None:
        for build in list(self._builds.values()):
            build.cancelled.set()
        for thread in self._threads:
            thread.join()
        self._stack.close()

    # -- commands --------------------------------------------------------------------------------------------------

    def credentials_file(self, path: Path) -> Path:
        """Write a service account's key there, for GOOGLE_APPLICATION_CREDENTIALS."""
        path.write_text(json.dumps(self.keys.credentials(self.url)))
        path.chmod(0o600)
        return path

    def builds(self) -> list[dict[str, Any]]:
        """Every build as the API shows it, in the order in which they were made."""
        with self._lock:
            return [dict(build.resource) for build in self._builds.values()]

    def cancel(self, build_id: str) -> None:
        """As if a user had cancelled it in Google's console."""
        self._cancel(self._builds[build_id])

    def asked(self, method: str) -> list[Entry]:
        """The requests for `create`, `get`, `list` or `cancel`."""
        return [entry for entry in self.entries if entry.method.rpartition(".")[2] == method]

    # -- a request -------------------------------------------------------------------------------------------------

    def _answer(self, asked: Asked) -> Reply | None:
        if asked.path == "/token" and asked.method == "POST":
            return self._token(asked.body)
        entry = Entry(method="", status=0, body=None)
        self.entries.append(entry)
        try:
            reply = Reply(self._value(asked, entry))
        except ApiError as error:
            kind = {"Content-Type": "application/json; charset=UTF-8"}
            reply = Reply(body_of(error), status=error.status, headers={**kind, **error.headers})
        except CutError:
            return None
        entry.status = reply.status
        return reply

    def _token(self, body: bytes) -> Reply:
        try:
            return Reply(self.keys.exchange(body, token_uri=f"{self.url}/token"))
        except TokenError as error:
            return Reply(error.document, status=400)

    def _value(self, asked: Asked, entry: Entry) -> dict[str, Any]:
        api = discovery()
        found = api.find(asked.method, asked.path.removeprefix(api.base).split("/"))
        if found is None:
            raise not_found()
        method, path = found
        entry.method = method.id
        self.keys.check(asked.headers.get("Authorization"))
        query = api.check_parameters(method, path, parse_qs(asked.query, keep_blank_values=True))
        entry.body = body = self._body(method, asked)
        fault = self.faults.of_request(method.id, zone=None, instance=None, part=False)
        time.sleep(fault.get("delay", 0.0))
        _fail(fault, "before")
        handler = self._handlers().get(method.id.rpartition(".builds.")[2])
        if handler is None:
            raise not_implemented(method.id)
        value = handler(_place(path), query, body)
        _fail(fault, "after")
        if method.response:
            try:
                api.response(method.response, value)
                for build in _builds_in(value):
                    api.response("Build", build)
            except SchemaError as error:
                raise ApiError(500, "INTERNAL", f"{method.id} would answer what its schema forbids: {error}") from error
        return value

    def _body(self, method: Method, asked: Asked) -> dict[str, Any]:
        if method.request is None:
            if asked.body.strip():
                raise invalid(f"{method.id} takes no body")
            return {}
        if (asked.headers.get("Content-Type") or "").partition(";")[0].strip() != "application/json":
            raise invalid(f"Not application/json: '{asked.headers.get('Content-Type')}'")
        try:
            value = json.loads(asked.body)
        except ValueError:
            raise invalid("Invalid JSON payload received.") from None
        checked: dict[str, Any] = discovery().request(method.request, value)
        return checked

    # -- methods ---------------------------------------------------------------------------------------------------

    def _handlers(self) -> Mapping[str, Callable[[_Where, Mapping[str, Any], dict[str, Any]], dict[str, Any]]]:
        return {"create": self._create, "get": self._get, "list": self._list, "cancel": self._cancel_request}

    def _create(self, where: _Where, _: Mapping[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        self._check_place(where)
        storage = Storage(self._storage, token=self._builder_token(body))
        asked = body.get("source", {})
        if set(asked) - {"storageSource"}:
            raise invalid("this stand-in knows no other source than storageSource")
        source = storage.resolve(asked["storageSource"]) if asked else None
        if body.get("logsBucket"):
            storage.check_bucket(body["logsBucket"].removeprefix("gs://").partition("/")[0])
        build = new_build(body, project=self.project, number=NUMBER, location=where.location, source=source)
        worker = Worker(
            build,
            storage=storage,
            token=self._builder_token(body),
            time_scale=self.time_scale,
            log_seconds=self._log_seconds,
            update=self._update,
        )
        scripted = self.ends.pop(0) if self.ends else None
        options = {"queue_seconds": self.queue_seconds, "scripted": scripted}
        thread = threading.Thread(target=worker.run, kwargs=options)
        with self._lock:
            self._builds[build.id] = build
            self._threads.append(thread)
            shown = dict(build.resource)
        thread.start()
        return {"name": f"operations/build/{self.project}/{build.id}", "metadata": {"@type": OPERATION, "build": shown}}

    def _get(self, where: _Where, _: Mapping[str, Any], __: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            return dict(self._find(where).resource)

    def _list(self, where: _Where, query: Mapping[str, Any], _: dict[str, Any]) -> dict[str, Any]:
        self._check_place(where)
        prefix = f"projects/{NUMBER}/locations/{where.location}/"
        with self._lock:
            everything = [dict(build.resource) for build in reversed(self._builds.values())]
        here = [build for build in everything if build["name"].startswith(prefix)]
        found = [build for build in here if matches(build, query.get("filter", ""))]
        start = int(query.get("pageToken", 0))
        end = start + min(query.get("pageSize") or 50, _MOST_LISTED)
        page: dict[str, Any] = {"builds": found[start:end]} if found[start:end] else {}
        return {**page, "nextPageToken": str(end)} if end < len(found) else page

    def _cancel_request(self, where: _Where, _: Mapping[str, Any], __: dict[str, Any]) -> dict[str, Any]:
        build = self._find(where)
        if build.over:
            raise ApiError(400, "FAILED_PRECONDITION", "Cannot cancel completed build")
        self._cancel(build)
        return dict(build.resource)

    def _cancel(self, build: Build) -> None:
        build.cancelled.set()
        # The answer has the build as it is then.
        with self._lock:
            if not build.over:
                build.resource["status"] = "CANCELLED"

    def _update(self, build: Build, changes: dict[str, Any]) -> None:
        with self._lock:
            # What was cancelled stays so, even if its worker was about to report something else.
            kept = {"status": "CANCELLED"} if build.cancelled.is_set() else {}
            build.resource.update({**changes, **kept})

    def _find(self, where: _Where) -> Build:
        self._check_place(where)
        build = self._builds.get(where.build)
        if build is None or f"/locations/{where.location}/" not in build.resource["name"]:
            raise not_found()
        return build

    def _check_place(self, where: _Where) -> None:
        if where.project not in (self.project, NUMBER) or not _LOCATION.fullmatch(where.location):
            raise not_found()

    def _builder_token(self, body: Mapping[str, Any]) -> str:
        account = body.get("serviceAccount", "").rpartition("/serviceAccounts/")[2] or BUILDER
        return self.keys.issue(account)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    project: str
    location: str
    build: str


def _place(path: Mapping[str, str]) -> _Where:
    """Of a regional method, or of an old one, which is for the location `global`."""
    found = _PLACE.fullmatch(path.get("name") or path.get("parent") or "")
    if found:
        return _Where(project=found[1], location=found[2], build=found[3] or "")
    return _Where(project=path.get("projectId", ""), location="global", build=path.get("id", ""))


def _fail(fault: Mapping[str, Any], when: str) -> None:
    if fault.get("reset") == when:
        raise CutError
    if "status" in fault and bool(fault.get("effect")) == (when == "after"):
        raise error_of(fault)


def _builds_in(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """In an operation the schema allows anything as metadata."""
    return [value["metadata"]["build"]] if "metadata" in value else []
