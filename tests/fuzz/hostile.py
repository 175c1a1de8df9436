"""Bytes of a fuzzer as a document: themselves, or a valid document with some of its values replaced.

A fuzzer that only has bytes spends its time on what is no JSON. Here a short script of bytes damages a valid document,
so that what follows the parser is reached too, and the fuzzer's coverage still leads it.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from typing import Any

SCRIPTS = 0x20
"""A first byte below this begins a script; no document begins with one."""


_DEEP = {f"@{depth}": b"[" * depth + b"]" * depth for depth in (60, 900, 100_000)}
"""What stands for lists in lists, which Python would not even copy."""

_TEXTS = (
    *("", " ", "0", "-1", "1e400", "9" * 5000, "٣", "²", "a" * 300, "x" * 70_000, "\0", "\n", "\r\nhint: rm", "\t"),
    *("..", "../../x", "/etc/passwd", "a/../../b", "-oProxyCommand=x", "--", "~", "C:\\x", "a//b", ".git/config"),
    *("\x1b]52;c;AAAA\x07", "\x1b[2J", "\x9b31m", "\u202egnp", "\u2028", "\ud800", "🙂", "ﬁ", "[/foo]", "[link=x]y"),
    *("<script>", "{{ 7 * 7 }}", "%s%n", "done", "running", "failed", "listed", "2026-11-22T00:00:00Z", "true", "null"),
)  # fmt: skip
VALUES: Sequence[Any] = (
    *(None, True, False, 0, 1, -1, 0.5, -0.0, 2**31, 2**63, -(2**63) - 1, 10**18, 10**400, 1e308, math.inf, math.nan),
    *([], {}, [[]], [{}], {"": None}, {"error": 1}, {"name": {}}, [None] * 50, *_DEEP, *_TEXTS),
)
"""What replaces a value."""


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every place in a document: its container, and the key or index in it."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        found.append((value, key))
        if len(found) < 500:
            _places(value[key], found)
    return found


def mutated(document: Any, script: bytes) -> Any:
    """A copy of the document, in which each three bytes of the script replace, remove or double a value."""
    holder = [copy.deepcopy(document)]
    for at in range(0, min(len(script), 24) - 2, 3):
        places = [(holder, 0)] if script[at] == 255 else _places(holder, [])
        container, key = places[(script[at] * 7 + script[at + 1] // 32) % len(places)]
        choice = script[at + 2]
        if choice < 200:
            container[key] = copy.deepcopy(VALUES[choice % len(VALUES)])
        elif choice < 220 and container is not holder:
            del container[key]
        elif choice < 235 and isinstance(container, list):
            container.append(copy.deepcopy(container[key]))
        elif isinstance(container, dict):
            container[str(VALUES[choice % len(VALUES)])[:300]] = copy.deepcopy(container[key])
        if not holder:
            holder = [None]
    return holder[0]


def document(data: bytes, seeds: Sequence[Any]) -> bytes:
    """The document that the fuzzer's bytes stand for, mostly JSON."""
    if not data or data[0] >= SCRIPTS:
        return data
    found = json.dumps(mutated(seeds[data[0] % len(seeds)], data[1:])).encode()
    for name, lists in _DEEP.items():
        found = found.replace(b'"%s"' % name.encode(), lists)
    return found


def lines(data: bytes, seeds: Sequence[Any]) -> bytes:
    """A document on each line: `document` for each part of the bytes."""
    if not data or data[0] >= SCRIPTS:
        return data
    return b"\n".join(document(data[at : at + 7], seeds) for at in range(0, min(len(data), 70), 7))
