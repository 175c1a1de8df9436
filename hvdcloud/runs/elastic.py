"""What a run's state and events tell of nodes that came and went; nothing for a static run.

Everything may be missing or of another kind: a bucket's content is not trusted. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TRAINS = "listed"
"""The state of a member that Horovod knows of."""
LEFT = ("failed", "lost", "gone")
"""The states of a member that takes no part."""
MARKED = {
    "lost a node": "lost",
    "worker failed": "lost",
    "preempted": "warned",
    "node leaves": "warned",
    "node joins": "joined",
    "started again": "again",
}
"""The events that a plot over time shows, and how they are drawn."""
_GREATEST = 1_000_000_000
_END_OF_TIME = 250_000_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A node of an elastic run."""

    name: str
    alias: str
    """Under which Horovod knows it: another one each time that the node has come back."""
    state: str
    """preparing | joining | ready | listed | failed | lost | leaving | gone"""
    since: float | None
    """Seconds since the epoch."""
    why: str
    slots: int | None
    """Ranks that it takes; 0: it only drives; None: not said."""

    @property
    def takes_part(self) -> bool:
        """Whether it does what it is there for: it trains, or drives the others."""
        return self.state == TRAINS or (self.slots == 0 and self.state == "ready")


def is_elastic(state: Mapping[str, Any]) -> bool:
    """Whether the run may go on with fewer or more nodes."""
    return isinstance(state.get("elastic"), dict)


def whole(value: object) -> int | None:
    """A number of ranks or nodes, also where it stands as text; None for whatever else is there."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _GREATEST:
        return None
    return int(value)


def members(state: Mapping[str, Any]) -> list[Member]:
    """The nodes of an elastic run, in the order of their names; empty for a static one."""
    found = state.get("members")
    listed = []
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and isinstance(each.get("name"), str):
            since = each.get("since")
            known = isinstance(since, (int, float)) and not isinstance(since, bool)
            listed.append(
                Member(
                    name=each["name"],
                    alias=str(each.get("alias") or each["name"]),
                    state=str(each.get("state") or "?"),
                    since=float(since) if known and since is not None and 0 < since < _END_OF_TIME else None,
                    why=str(each.get("why") or ""),
                    slots=whole(each.get("slots")),
                )
            )
    return sorted(listed, key=lambda member: (len(member.name), member.name))


def world(state: Mapping[str, Any]) -> int | None:
    """How many ranks train now; None: it does not say so, because it is static or has not begun."""
    return whole(state.get("world")) if is_elastic(state) else None


def restarts(state: Mapping[str, Any]) -> int:
    """How often horovodrun was started again."""
    return whole(state.get("restarts")) or 0


def most_ranks(state: Mapping[str, Any]) -> int | None:
    """How many ranks the run can have had at a time, and so the first number that no rank of it ever was."""
    ranks = whole(state.get("np"))
    elastic, nodes = state.get("elastic"), state.get("nodes")
    if not ranks or not isinstance(elastic, dict):
        return ranks or None
    known = [member.slots for member in members(state) if member.slots is not None]
    slots = max(known, default=-(-ranks // max(1, len(nodes) if isinstance(nodes, list) else 1)))
    return max(ranks, (whole(elastic.get("max")) or 0) * slots, world(state) or 0)


def ranks_text(*, ranks: int, now: int | None) -> str:
    """`4 ranks`; `3 of 4 ranks` where some are missing."""
    if now is None or now == ranks:
        return f"{ranks} rank{'s' if ranks != 1 else ''}"
    return f"{now} of {ranks} ranks" if now < ranks else f"{now} ranks"


def restarts_text(count: int) -> str:
    """`; horovodrun was started again twice`, after other words; empty where it was not."""
    if not count:
        return ""
    return f"; horovodrun was started again {({1: 'once', 2: 'twice'}).get(count, f'{count} times')}"


def told(event: Mapping[str, Any]) -> str:
    """An event in words, with whatever it has beside its name."""
    name, node, detail = (str(event.get(key) or "") for key in ("event", "node", "detail"))
    if name == "world" and (ranks := whole(event.get("ranks"))) is not None:
        nodes = whole(event.get("nodes"))
        on = f" on {nodes} node{'s' if nodes != 1 else ''}" if nodes is not None else ""
        return f"world: {ranks} rank{'s' if ranks != 1 else ''}{on}"
    if node and detail.startswith(node):
        node = ""
    return f"{name}{f': {node}' if node else ''}{f': {detail}' if detail else ''}"


def world_steps(events: Iterable[Mapping[str, Any]], *, began: float, until: float) -> list[tuple[float, int]]:
    """How many ranks there were from each moment on, in seconds since `began` up to `until`; empty: nothing says it."""
    steps: list[tuple[float, int]] = []
    for event in sorted(events, key=lambda each: float(each["t"])):
        ranks = whole(event.get("ranks")) if event.get("event") == "world" else None
        if ranks is not None:
            steps.append((min(until, max(0.0, float(event["t"]) - began)), ranks))
    return steps


def world_line(steps: Sequence[tuple[float, int]], *, until: float) -> list[tuple[float, float]]:
    """The same as the corners of a line that goes in steps and ends at `until`."""
    line: list[tuple[float, float]] = []
    for at, ranks in steps:
        if line:
            line.append((at, line[-1][1]))
        line.append((at, float(ranks)))
    return [*line, (until, line[-1][1])] if line and until > line[-1][0] else line
