"""From an HTTP request to an answer: route, authorisation, schema, fault plan, method."""

from __future__ import annotations

import json
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.standins.compute import permissions, resources
from tests.standins.compute.access import Access
from tests.standins.compute.auth import Keys
from tests.standins.compute.call import HANDLERS, UNLOCKED, Call
from tests.standins.compute.errors import ApiError, CutError, denied, invalid, not_found, not_implemented
from tests.standins.compute.faults import error_of
from tests.standins.compute.lifecycle import Lifecycle
from tests.standins.compute.lists import HOST
from tests.standins.compute.schema import Method, SchemaError, discovery
from tests.standins.compute.state import Workers
from tests.standins.storage import fields

__all__ = ["Answer", "Api", "Entry", "Request", "resources"]

_MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`part`: of a batch, not an HTTP request of its own."""

    http: str
    target: str
    headers: Message
    body: bytes
    connection: socket.socket
    part: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    body: bytes
    kind: str = "application/json; charset=UTF-8"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Entry:
    """One request in the log. `status`: None while it's being answered, 0 if the connection was cut."""

    http: str
    target: str
    part: bool
    method: str = ""
    status: int | None = None
    body: Any = None


class Log:
    """Every request to the API in the order in which they arrived."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[Entry] = []

    def add(self, request: Request) -> Entry:
        entry = Entry(http=request.http, target=request.target, part=request.part)
        with self._lock:
            self._entries.append(entry)
        return entry

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()


class Api:
    """The methods of one world."""

    def __init__(self, world: Workers, lifecycle: Lifecycle, keys: Keys, access: Access) -> None:
        self.log = Log()
        self._world = world
        self._lifecycle = lifecycle
        self._keys = keys
        self._access = access
        self._discovery = discovery()

    def answer(self, request: Request) -> Answer:
        """Answer one call.

        Raises:
            CutError: the connection is to end without an answer.
        """
        entry = self.log.add(request)
        try:
            answer = self._answer(request, entry)
        except ApiError as error:
            answer = Answer(status=error.status, body=error.body(), headers=error.headers)
        except CutError:
            entry.status = 0
            raise
        except Exception as error:  # Whatever it is, it's a bug of the emulator: say so.
            self._world.clock.failures.append(error)
            text = f"a bug in the emulator: {''.join(traceback.format_exception(error))}"
            answer = Answer(status=500, body=ApiError(500, "internalError", text).body())
        entry.status = answer.status
        return answer

    def _answer(self, request: Request, entry: Entry) -> Answer:
        parts = urlsplit(request.target)
        if not parts.path.startswith(self._discovery.base):
            return _unknown(request)
        segments = [unquote(segment) for segment in parts.path[len(self._discovery.base) :].split("/")]
        found = self._discovery.find(request.http, segments)
        if found is None:
            return _unknown(request)
        method, path = found
        entry.method = method.id
        user = self._keys.check(request.headers.get("Authorization"))
        self._check_permission(user, method, path, request)
        query = parse_qs(parts.query, keep_blank_values=True)
        if method.id.lower().endswith("list") and not request.headers.get("X-Goog-Api-Version"):
            # Of lists until the version of 2026-09-01, which Google's library names since then; gcloud 528 names none.
            query.pop("returnPartialSuccess", None)
        typed = self._discovery.check_parameters(method, path, query)
        body = self._body(method, request)
        entry.body = body or None
        fault = self._world.faults.of_request(
            method.id, zone=path.get("zone"), instance=path.get("instance"), part=request.part
        )
        self._before(fault, method, request)
        self._check_place(method, path)
        handler = HANDLERS.get(method.id)
        if handler is None:
            raise not_implemented(method.id)
        call = Call(
            world=self._world,
            lifecycle=self._lifecycle,
            method=method,
            path=path,
            query=typed,
            body=body,
            user=user,
        )
        if method.id in UNLOCKED:
            value = handler(call)
        else:
            with self._world.lock:
                again = self._world.operations.of_request(call.request)
                value = again.resource if again else handler(call)
        self._after(fault, method, request)
        if method.response:
            try:
                self._discovery.response(method.response, value)
            except SchemaError as error:
                raise RuntimeError(f"{method.id} would answer what its schema doesn't allow: {error}") from error
        if typed.get("fields"):
            value = fields.select(value, fields.parse(typed["fields"]))
        return Answer(status=200, body=json.dumps(value).encode())

    def _body(self, method: Method, request: Request) -> dict[str, Any]:
        if method.request is None:
            if request.body.strip() not in (b"", b"{}"):
                raise invalid(f"{method.id} takes no body.")
            return {}
        if len(request.body) > _MOST_BYTES:
            raise ApiError(413, "uploadTooLarge", "The request is too large.")
        kind = request.headers.get("Content-Type") or ""
        if kind.partition(";")[0].strip() != "application/json":
            raise ApiError(415, "unsupportedMediaTypeForRequest", f"Not application/json: '{kind}'")
        # A client that was told of another endpoint than Google's writes URLs of that one.
        own = f"http://{request.headers.get('Host')}{self._discovery.base}"
        try:
            value = json.loads(request.body.replace(f'"{own}'.encode(), f'"{HOST}/'.encode()))
        except ValueError:
            raise ApiError(400, "parseError", "Parse Error") from None
        checked: dict[str, Any] = self._discovery.request(method.request, value)
        return checked

    def _check_permission(self, user: str, method: Method, path: Mapping[str, str], request: Request) -> None:
        """Raises ApiError, 403: the user lacks the method's permission."""
        permission, resource = permissions.needed(method.id, path, request.body)
        if not self._access.may(user, permission, resource=resource):
            raise denied(permission, resource)

    def _check_place(self, method: Method, path: Mapping[str, str]) -> None:
        """Raises ApiError: 404 for another project, 503 for a zone that can't be reached."""
        project = path.get("project")
        own = project in (None, self._world.project, self._world.number)
        if not own and not method.id.startswith("compute.images."):
            raise not_found(f"projects/{project}")
        if path.get("zone") in self._world.unreachable and not method.id.startswith("compute.zones."):
            raise ApiError(503, "backendError", f"The zone '{path['zone']}' is unreachable. Please try again.")

    # -- the fault plan ------------------------------------------------------------------------------------------------

    def _before(self, fault: Mapping[str, Any], method: Method | str, request: Request) -> None:
        if "delay" in fault:
            time.sleep(fault["delay"])
        if fault.get("reset") == "before":
            raise CutError
        if "status" in fault:
            raise error_of(fault)
        if fault.get("hold") == "before":
            self._hold("before", method, request)

    def _after(self, fault: Mapping[str, Any], method: Method | str, request: Request) -> None:
        if fault.get("reset") == "after":
            raise CutError
        if fault.get("hold") == "after":
            self._hold("after", method, request)

    def _hold(self, when: str, method: Method | str, request: Request) -> None:
        name = method if isinstance(method, str) else method.id
        if not self._world.faults.hold(when, name, request.connection):
            raise CutError

    def answer_batch(self, request: Request) -> Answer:
        """POST /batch/compute/v1; see batch.py.

        Raises:
            CutError: the connection is to end without an answer.
        """
        from tests.standins.compute import batch

        entry = self.log.add(request)
        entry.method = "batch"
        try:
            self._keys.check(request.headers.get("Authorization"))
            fault = self._world.faults.of_request("batch", zone=None, instance=None, part=False)
            self._before(fault, "batch", request)
            answer = batch.answer(request, self.answer)
            self._after(fault, "batch", request)
        except ApiError as error:
            answer = Answer(status=error.status, body=error.body(), headers=error.headers)
        except CutError:
            entry.status = 0
            raise
        entry.status = answer.status
        return answer


def _unknown(request: Request) -> Answer:
    """What Google's front end says of a URL that isn't one of the API's."""
    path = urlsplit(request.target).path
    text = (
        "<!DOCTYPE html><title>Error 404 (Not Found)!!1</title>"
        f"<p>The requested URL <code>{path}</code> was not found on this server."
    )
    return Answer(status=404, body=text.encode(), kind="text/html; charset=UTF-8")
