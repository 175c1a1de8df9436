"""The fault plan: what goes wrong, when, and for whom.

A rule is a JSON object; the first that matches happens:

    {"method": "compute.instances.bulkInsert", "zone": "us-central1-a", "instance": "run-*",
     "skip": 0, "times": 1, "action": {...}}

`method` is a method's id, or a pattern of it (`compute.instances.*`), or `batch`; without it the rule is for every HTTP
request to the API (the parts of a batch are not requests of their own then). `zone` and `instance` narrow it further.
`skip` lets that many matches pass first; `times` is how often it happens (null: without end). One action of README.md.
"""

from __future__ import annotations

import fnmatch
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tests.standins.compute.errors import ApiError, invalid

# What an action may have; the first name says which it is.
_REQUEST = {
    "status": {"reason", "message", "details"},
    "reset": set(),
    "delay": set(),
    "hold": set(),
}
_OPERATION: dict[str, set[str]] = {
    "operation_error": {"effect"},
    "queue": set(),
    "slow": set(),
    "stockout": set(),
}
_MACHINE: dict[str, set[str]] = {"hang_ready": {"at"}, "fail_ready": set()}
_REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "alreadyExists",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
    500: "internalError",
    502: "backendError",
    503: "backendError",
}


@dataclass(slots=True, kw_only=True)
class Rule:
    action: dict[str, Any]
    method: str | None = None
    zone: str | None = None
    instance: str | None = None
    skip: int = 0
    times: int | None = 1
    hits: int = field(default=0)

    @property
    def group(self) -> Mapping[str, set[str]]:
        return next(group for group in (_REQUEST, _OPERATION, _MACHINE) if set(self.action) & set(group))


@dataclass(slots=True)
class Held:
    """A request that waits."""

    when: str
    method: str
    release: threading.Event = field(default_factory=threading.Event)


class Faults:
    """The plan of one emulator."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._rules: list[Rule] = []
        self._held: list[Held] = []

    def add(self, action: dict[str, Any], **where: Any) -> None:
        """`faults.add({"status": 503}, method="compute.instances.delete", times=2)`.

        Raises:
            ApiError: 400; not a rule.
        """
        if set(where) - {"method", "zone", "instance", "skip", "times"}:
            raise invalid(f"not a rule: {where}")
        _check(action)
        with self._change:
            self._rules.append(Rule(action=action, **where))

    def clear(self) -> None:
        with self._change:
            self._rules.clear()
        self.release()

    def plain(self) -> dict[str, Any]:
        with self._change:
            return {
                "rules": [asdict(rule) for rule in self._rules],
                "held": [{"when": held.when, "method": held.method} for held in self._held],
            }

    def of_request(self, method: str, *, zone: str | None, instance: str | None, part: bool) -> dict[str, Any]:
        """What happens to this request; empty: nothing."""
        return self._take(
            (_REQUEST,),
            lambda rule: (
                (rule.method is not None or not part)
                and fnmatch.fnmatchcase(method, rule.method or "*")
                and _same(rule, zone, instance)
            ),
        )

    def of_operation(self, method: str, *, zone: str | None, instance: str | None) -> dict[str, Any]:
        """What happens to the operation that this request starts."""
        return self._take(
            (_OPERATION,),
            lambda rule: fnmatch.fnmatchcase(method, rule.method or "*") and _same(rule, zone, instance),
        )

    def of_machine(self, *, zone: str, instance: str) -> dict[str, Any]:
        """What happens to this machine, now that it starts."""
        return self._take((_MACHINE,), lambda rule: rule.method is None and _same(rule, zone, instance))

    def _take(self, groups: tuple[Mapping[str, set[str]], ...], wanted: Callable[[Rule], bool]) -> dict[str, Any]:
        with self._change:
            for rule in self._rules:
                if rule.group not in groups or rule.times == 0 or not wanted(rule):
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                    continue
                if rule.times is not None:
                    rule.times -= 1
                rule.hits += 1
                return rule.action
        return {}

    # -- requests that wait ----------------------------------------------------------------------------------------

    def hold(self, when: str, method: str, connection: socket.socket) -> bool:
        """Wait until released (True) or until the other side is gone (False)."""
        held = Held(when, method)
        with self._change:
            self._held.append(held)
            self._change.notify_all()
        try:
            while not held.release.wait(0.02):
                if _closed(connection):
                    return False
            return True
        finally:
            with self._change:
                self._held.remove(held)
                self._change.notify_all()

    def wait_held(self, *, timeout: float = 30) -> bool:
        """Wait until a request is held."""
        with self._change:
            return self._change.wait_for(lambda: bool(self._held), timeout)

    def release(self) -> None:
        """Release the requests that are held."""
        with self._change:
            for held in self._held:
                held.release.set()


def error_of(action: Mapping[str, Any]) -> ApiError:
    """The answer of a `status` action."""
    status = action["status"]
    return ApiError(
        status,
        action.get("reason", _REASONS.get(status, "backendError")),
        action.get("message", "a scripted fault"),
        details=action.get("details", ()),
    )


def _same(rule: Rule, zone: str | None, instance: str | None) -> bool:
    if rule.zone is not None and rule.zone != zone:
        return False
    return rule.instance is None or (instance is not None and fnmatch.fnmatchcase(instance, rule.instance))


def _closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _check(action: Mapping[str, Any]) -> None:
    known = {**_REQUEST, **_OPERATION, **_MACHINE}
    names = [name for name in action if name in known]
    if len(names) != 1 or set(action) - {names[0]} - known[names[0]]:
        raise invalid(f"not an action: {dict(action)}")
    name, value = names[0], action[names[0]]
    rules: dict[str, Callable[[], bool]] = {
        "status": lambda: isinstance(value, int) and 400 <= value <= 599,
        "reset": lambda: value in ("before", "after"),
        "hold": lambda: value in ("before", "after"),
        "stockout": lambda: isinstance(value, dict) and not set(value) - {"after", "report"},
        "operation_error": lambda: (
            isinstance(value, dict) and "code" in value and not set(value) - {"code", "message", "http"}
        ),
        "fail_ready": lambda: isinstance(value, dict) and set(value) - {"refused"} == {"step", "error"},
        "hang_ready": lambda: value is True,
        "queue": lambda: value is True,
    }
    right = rules.get(name, lambda: isinstance(value, (int, float)) and value >= 0)
    if not right():
        raise invalid(f"not an action: {dict(action)}")
