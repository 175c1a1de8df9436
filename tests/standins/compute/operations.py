"""Operations: PENDING → RUNNING → DONE in real time."""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tests.standins.compute.clock import timestamp
from tests.standins.compute.errors import invalid_field

_HTTP = {
    400: "BAD REQUEST",
    403: "FORBIDDEN",
    404: "NOT FOUND",
    409: "CONFLICT",
    412: "PRECONDITION FAILED",
    500: "INTERNAL SERVER ERROR",
    503: "SERVICE UNAVAILABLE",
}


class Operation:
    """One operation. `resource` is replaced when something changes, never altered."""

    def __init__(self, scope: str, resource: dict[str, Any]) -> None:
        self.scope = scope
        self.resource = resource
        self.done = threading.Event()

    @property
    def name(self) -> str:
        return str(self.resource["name"])

    def update(self, **changes: Any) -> None:
        self.resource = {**self.resource, **changes}

    def start(self) -> None:
        if self.resource["status"] == "PENDING":
            self.update(status="RUNNING", startTime=timestamp())

    def finish(self, errors: Sequence[Mapping[str, Any]] = (), *, http: int | None = None) -> None:
        """DONE; `http` is what httpErrorStatusCode says, if it says anything."""
        self.start()
        changes: dict[str, Any] = {"status": "DONE", "progress": 100, "endTime": timestamp()}
        if errors:
            changes["error"] = {"errors": list(errors)}
            if http is not None:
                changes |= {"httpErrorStatusCode": http, "httpErrorMessage": _HTTP.get(http, "ERROR")}
        self.update(**changes)
        self.done.set()


class Operations:
    """All of them, of every scope ("zones/Z", "regions/R", "global"). Used under the world's lock."""

    def __init__(self, *, root: str) -> None:
        self._root = root
        self._by_scope: dict[str, dict[str, Operation]] = {}
        self._by_request: dict[str, tuple[str, Operation]] = {}
        self._ids = itertools.count(int(time.time() * 1000) << 20)

    def create(
        self,
        kind: str,
        *,
        scope: str,
        target: str,
        target_id: str,
        user: str,
        request: tuple[str, str] | None = None,
        group: str | None = None,
    ) -> Operation:
        """A PENDING operation on `target`, a resource's URL.

        Args:
            request: the request's id and what it asks for.
        """
        number = next(self._ids)
        name = f"operation-{int(time.time() * 1000)}-{secrets.token_hex(7)}-{number & 0xFFFFFFFF:08x}"
        now = timestamp()
        place = {} if scope == "global" else {scope.partition("/")[0][:-1]: f"{self._root}/{scope}"}
        resource: dict[str, Any] = {
            "kind": "compute#operation",
            "id": str(number),
            "name": name,
            "operationType": kind,
            "targetLink": target,
            "targetId": target_id,
            "status": "PENDING",
            "user": user,
            "progress": 0,
            "insertTime": now,
            "selfLink": f"{self._root}/{scope}/operations/{name}",
            **place,
        }
        if request:
            resource["clientOperationId"] = request[0]
        if group:
            resource["operationGroupId"] = group
        operation = Operation(scope, resource)
        self._by_scope.setdefault(scope, {})[name] = operation
        if request:
            self._by_request[request[0]] = (request[1], operation)
        return operation

    def of_request(self, request: tuple[str, str] | None) -> Operation | None:
        """The operation that this request started before.

        Raises:
            ApiError: 400; its id belongs to another request.
        """
        if request is None or request[0] not in self._by_request:
            return None
        before, operation = self._by_request[request[0]]
        if before != request[1]:
            raise invalid_field("requestId", request[0], "It was used for another request.")
        return operation

    def find(self, scope: str, name: str) -> Operation | None:
        return self._by_scope.get(scope, {}).get(name)

    def of_scope(self, scope: str) -> list[Operation]:
        return list(self._by_scope.get(scope, {}).values())

    def all(self) -> list[Operation]:
        return [one for scope in self._by_scope.values() for one in scope.values()]
