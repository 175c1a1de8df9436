"""Failures on command: a test adds faults, which happen to the requests that match.

A fault is a JSON object: {"method": "GET", "path": "regular expression found in the path", "skip": 0, "times": 1,
"action": {...}}; it happens to each request that matches, but for the first `skip`, at most `times` times. The action
is one of
  {"status": 503}               answer with this status; nothing happens
  {"cut": "request", "after": K}   read K bytes of the body, then cut the connection; nothing happens
  {"cut": "effect"}             do what is asked, then cut the connection instead of answering
  {"cut": "response", "after": K}  cut the connection after K bytes of the answer's body
  {"delay": S}                  wait S seconds, then continue as usual
"""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from typing import Any

from tests.standins.storage.errors import invalid

_ACTIONS = {
    frozenset({"status"}),
    frozenset({"cut", "after"}),
    frozenset({"cut"}),
    frozenset({"delay"}),
}


@dataclass(slots=True, kw_only=True)
class Fault:
    method: str | None
    path: str
    skip: int
    times: int
    action: dict[str, Any]
    hits: int = field(default=0)


class Faults:
    """The script. Faults are tried in the order in which they were added; the first that matches happens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[Fault] = []

    def add(self, value: dict[str, Any]) -> None:
        if set(value) - {"method", "path", "skip", "times", "action"} or "action" not in value:
            raise invalid(f"not a fault: {value}")
        action = value["action"]
        if frozenset(action) not in _ACTIONS or action.get("cut", "effect") not in ("request", "effect", "response"):
            raise invalid(f"not an action: {action}")
        fault = Fault(
            method=value.get("method"),
            path=value.get("path", ""),
            skip=value.get("skip", 0),
            times=value.get("times", 1),
            action=action,
        )
        re.compile(fault.path)
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def plain(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {
                    "method": f.method,
                    "path": f.path,
                    "skip": f.skip,
                    "times": f.times,
                    "action": f.action,
                    "hits": f.hits,
                }
                for f in self._faults
            ]

    def match(self, method: str, target: str) -> dict[str, Any]:
        """The action for this request; empty if none."""
        with self._lock:
            for fault in self._faults:
                if fault.times <= 0 or (fault.method not in (None, method)) or not re.search(fault.path, target):
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                fault.hits += 1
                return fault.action
        return {}
