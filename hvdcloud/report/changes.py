"""How an elastic run changed: the number of its ranks over time, and how often nodes came and went. Pure."""

from __future__ import annotations

from collections import Counter

from hvdcloud.report.metrics import Series
from hvdcloud.report.record import RunRecord

_LOSSES = ("lost a node", "worker failed", "preempted", "node leaves")
"""The events after which there are fewer ranks before the work is done."""


def changes_world(record: RunRecord) -> bool:
    """Whether ranks may have moved between nodes; where the state is missing, the events tell."""
    return record.state.elastic is not None or any(event.name == "world" for event in record.events)


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
    losses = [each.at - started for each in record.events if each.name in _LOSSES]
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
