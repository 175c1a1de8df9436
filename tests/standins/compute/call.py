"""One call of one method, and the table of those that are implemented."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.standins.compute.catalogue import REGION_OF, ZONE_SCOPES, ZONES
from tests.standins.compute.errors import ApiError, invalid_field
from tests.standins.compute.lifecycle import Lifecycle
from tests.standins.compute.lists import Item, Page, aggregated
from tests.standins.compute.operations import Operation
from tests.standins.compute.schema import Method
from tests.standins.compute.state import Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that's well-formed.

    Attributes:
        path: its parameters in the path; query: those in the query, typed; body: in one form.
        user: who asks.
    """

    world: Workers
    lifecycle: Lifecycle
    method: Method
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: dict[str, Any]
    user: str

    @property
    def zone(self) -> str:
        zone = self.path["zone"]
        if zone not in REGION_OF:
            raise invalid_field("zone", zone, "Unknown zone.")
        return zone

    @property
    def region(self) -> str:
        region = self.path["region"]
        if region not in ZONES:
            raise invalid_field("region", region, "Unknown region.")
        return region

    @property
    def request(self) -> tuple[str, str] | None:
        """The request's id, and what identifies the request.

        Raises:
            ApiError: 400; the id isn't a UUID, or is zero.
        """
        text = self.query.get("requestId")
        if text is None:
            return None
        if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", text) or uuid.UUID(text).int == 0:
            raise invalid_field("requestId", text, "Must be a valid, non-zero UUID.")
        return text, f"{self.method.id} {sorted(self.path.items())}"

    def page(self, schema: str) -> Page:
        return Page(self.query, schema=schema)

    def aggregated(
        self, collection: str, schema: str, items: Iterable[tuple[str, Item]], *, scopes: Sequence[str] = ZONE_SCOPES
    ) -> dict[str, Any]:
        """The answer of `aggregatedList`.

        Args:
            collection: what the items are called: "instances".
            schema: of one item.
            items: (scope, item); a scope is "zones/us-central1-a", "regions/us-central1" or "global".
            scopes: all there are.
        """
        return aggregated(
            self.page(schema),
            items,
            schema=schema,
            path=self.url(f"aggregated/{collection}"),
            scopes=scopes,
            unreachable={f"zones/{zone}": where for zone, where in self.world.unreachable.items()},
        )

    def url(self, path: str) -> str:
        """Of a resource of the project, as lists have it: without the host."""
        return f"projects/{self.world.project}/{path}"

    def operation(self, kind: str, target: Mapping[str, Any], *, scope: str, group: str | None = None) -> Operation:
        """The operation that this call starts."""
        return self.world.operations.create(
            kind,
            scope=scope,
            target=target["selfLink"],
            target_id=target["id"],
            user=self.user,
            request=self.request,
            group=group,
        )

    def fault(self) -> dict[str, Any]:
        """What the fault plan has for the operation that this call starts."""
        instance = self.path.get("instance")
        return self.world.faults.of_operation(self.method.id, zone=self.path.get("zone"), instance=instance)


Handler = Callable[[Call], dict[str, Any]]
HANDLERS: dict[str, Handler] = {}
# Those that wait for something, and so can't hold the lock meanwhile.
UNLOCKED: set[str] = set()


def implements(*methods: str, locked: bool = True) -> Callable[[Handler], Handler]:
    """Say which methods a function answers: `implements("instances.get")`."""

    def register(handler: Handler) -> Handler:
        for method in methods:
            HANDLERS[f"compute.{method}"] = handler
            if not locked:
                UNLOCKED.add(f"compute.{method}")
        return handler

    return register


def run_simple(call: Call, operation: Operation, effect: Callable[[], None], *, fault: Mapping[str, Any]) -> None:
    """Let an operation go PENDING → RUNNING → DONE, with its effect at the end, or with the fault plan's error."""
    world = call.world

    def begin() -> None:
        with world.lock:
            operation.start()
        world.clock.after(world.delays.other + fault.get("slow", 0.0), end)

    def end() -> None:
        with world.lock:
            error = fault.get("operation_error")
            if error is None or fault.get("effect"):
                effect()
            operation.finish([scripted(error)] if error else (), http=error.get("http") if error else None)

    world.clock.after(world.delays.start, begin)


def insert(
    call: Call,
    resource: Mapping[str, Any],
    there: dict[str, Any],
    *,
    scope: str,
    kept: object = None,
    effect: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Answer an insert: the name is taken from now on, unless the fault plan has the operation fail without effect.

    Args:
        there: what exists, by name.
        kept: what is kept there; None: the resource itself.

    Raises:
        ApiError: 409, the name is taken.
    """
    name = resource["name"]
    if name in there:
        path = resource["selfLink"].partition("/compute/v1/")[2]
        raise ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
    operation = call.operation("insert", resource, scope=scope)
    fault = call.fault()
    if "operation_error" not in fault or fault.get("effect"):
        there[name] = kept or resource
    run_simple(call, operation, effect, fault=fault)
    return operation.resource


def delete(
    call: Call,
    resource: Mapping[str, Any],
    there: dict[str, Any],
    *,
    scope: str,
    effect: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Answer a delete: it is gone at the operation's end, and then `effect` is called."""
    operation = call.operation("delete", resource, scope=scope)

    def gone() -> None:
        there.pop(resource["name"], None)
        effect()

    run_simple(call, operation, gone, fault=call.fault())
    return operation.resource


def scripted(error: Mapping[str, Any]) -> dict[str, Any]:
    """An `operation_error` of the fault plan as one of an operation's errors."""
    return {"code": error["code"], "message": error.get("message", "a scripted fault")}
