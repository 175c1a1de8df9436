"""A run's changes in a page: the number of its ranks over time, and marks where nodes were lost or joined. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hvdcloud.report.metrics import Series
from hvdcloud.report.plot import Mark
from hvdcloud.report.record import RunRecord
from hvdcloud.units import seconds

MOST_MARKS = 200
MARKED = {
    "lost a node": "lost",
    "worker failed": "lost",
    "preempted": "warned",
    "node leaves": "warned",
    "node joins": "joined",
    "started again": "again",
}
"""The events that a plot over time shows, and how they are drawn."""
_APART = 250.0
"""Marks of one kind that are closer than the plot's width by this are one."""
_MEANING = {
    "lost": "node lost, or its worker failed",
    "warned": "preempted, or leaving",
    "joined": "node joins",
    "again": "horovodrun started again",
}


def changes_world(record: RunRecord) -> bool:
    """Whether ranks may have moved between nodes; where the state is missing, the events tell."""
    return record.state.elastic is not None or any(event.name == "world" for event in record.events)


def marks(record: RunRecord, *, started: float, until: float) -> list[Mark]:
    """What every plot over time shows, oldest first; what happened at once to several nodes is one mark."""
    last: dict[str, Mark] = {}
    found: list[Mark] = []
    for event in sorted(record.events, key=lambda each: each.at):
        if (kind := MARKED.get(event.name)) is None:
            continue
        at = min(until, max(0.0, event.at - started))
        name = f"{event.text}, {seconds(at)} into the run"
        if (before := last.get(kind)) is not None and at - before.at < until / _APART:
            found.remove(before)
            at, name = before.at, f"{before.name}; {name}"
        last[kind] = Mark(at=at, kind=kind, name=name)
        found.append(last[kind])
    return found[-MOST_MARKS:]


def key_of(shown: Sequence[Mark]) -> list[tuple[str, str]]:
    """The kinds of the marks, each with what it means."""
    kinds = {mark.kind for mark in shown}
    return [(kind, meaning) for kind, meaning in _MEANING.items() if kind in kinds]


def world_series(record: RunRecord, *, started: float, until: float) -> list[Series]:
    """How many ranks there were; empty for a static run."""
    line: list[tuple[float, float]] = []
    for at, ranks in _steps(record, started=started, until=until):
        if line:
            line.append((at, line[-1][1]))
        line.append((at, float(ranks)))
    if line and until > line[-1][0]:
        line.append((until, line[-1][1]))
    return [Series(name="ranks", points=line)] if line else []


def _steps(record: RunRecord, *, started: float, until: float) -> list[tuple[float, int]]:
    """How many ranks there were from each moment on, in seconds since the run started; empty if no event says it.

    That they end one by one when their work is done is not a change.
    """
    events = (event for event in record.events if event.name == "world")
    worlds = sorted((event.at, event.ranks) for event in events if event.ranks is not None)
    steps = [(min(until, max(0.0, at - started)), ranks) for at, ranks in worlds]
    if record.state.result != "succeeded":
        return steps
    kinds = ("lost", "warned")
    losses = [each.at - started for each in record.events if MARKED.get(each.name) in kinds]
    while len(steps) > 1 and steps[-1][1] < steps[-2][1] and not any(at >= steps[-2][0] for at in losses):
        steps.pop()
    return steps


def summary(record: RunRecord) -> list[tuple[str, object]]:
    """Of an elastic run: how far it might shrink and grow, and what came of it."""
    if not changes_world(record):
        return []
    rows: list[tuple[str, object]] = []
    limits = record.state.elastic
    if limits is not None and limits.min is not None:
        most = f" to {limits.max} nodes" if limits.max is not None else " nodes or more"
        rows.append(("Elastic", f"{limits.min}{most}"))
    if sizes := {ranks for _, ranks in _steps(record, started=0.0, until=float("inf"))}:
        least = f"{min(sizes)} to " if len(sizes) > 1 else ""
        rows.append(("World", f"{least}{max(sizes)} ranks"))
    counts = Counter(event.name for event in record.events)
    named = (("lost", "lost a node"), ("preempted", "preempted"), ("joined", "node joins"))
    if happened := [f"{counts[name]} {what}" for what, name in named if counts[name]]:
        rows.append(("Nodes came and went", ", ".join(happened)))
    if again := max(record.state.restarts, counts["started again"]):
        rows.append(("horovodrun started again", f"{again} time{'s' if again != 1 else ''}"))
    return rows
