"""Where the money of a cluster went: the time that its nodes were billed for, divided by what they did. Pure.

Everything comes from moments that were written down when they happened: by the startup script of a VM, by the head of a
run, by the command that deletes. Each second of each node gets exactly one category, so that the parts add up to what
was billed. A second of which nothing is written down is `unaccounted`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hvdcloud.units import LEAST_SHOWN_DOLLARS, dollars, seconds

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Billed
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.runs.state import Event, RunState

UNACCOUNTED, OFF = "unaccounted", "off"
CATEGORIES = (
    "boot",
    "driver",
    "image",
    "start",
    "data",
    "training",
    "waiting for ranks",
    "upload",
    "idle",
    "teardown",
    OFF,
    UNACCOUNTED,
)
"""In the order in which they are shown; docs/cost.md says what each is."""
_STEPS = {"host": "boot", "login": "image", "pull": "image", "driver": "driver", "start": "start"}
"""The category of each step of a VM's startup script (providers/gce/plan/startup)."""
_FOREVER = float("inf")
_NOTICEABLE = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTimes:
    """What is known of the start of a node; moments are seconds since the epoch."""

    node: str
    joined: float
    """When it was known to the others."""
    boot: Mapping[str, float] = field(default_factory=dict)
    """When each step of its startup script began, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """When what happened to a run; moments are seconds since the epoch, None: it did not happen, or is not known."""

    run: str
    started: float
    data_since: float | None = None
    launched: float | None = None
    training_since: float | None = None
    training_until: float | None = None
    ended: float | None = None
    """None: it is active, or its end is not known."""
    over: bool = False
    """It has ended, whether it is known when or not."""
    nodes: Sequence[str] | None = None
    """The nodes that took part; None: any may have."""
    last_ranks: Mapping[str, float] = field(default_factory=dict)
    """When the last rank of a node ended, by the node's name."""
    without_ranks: Sequence[tuple[float, float | None]] = ()
    """From when until when no rank of an elastic run trained; None: until its end."""
    joins: Sequence[tuple[str, float]] = ()
    """When a node joined while it was active."""
    waited: Mapping[str, float] = field(default_factory=dict)
    """For how many seconds of its training the ranks of a node waited for slow ones, by the node's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of what was billed."""

    category: str
    seconds: float
    """The sum over all nodes."""
    dollars: float


def node_times(record: ClusterRecord | None) -> list[NodeTimes]:
    """What this machine's record says of the nodes that it saw join."""
    members = record.nodes if record is not None else ()
    return [NodeTimes(node=each.name, joined=each.joined, boot=each.boot) for each in members if each.joined]


def merged(before: Sequence[Billed], now: Sequence[Billed]) -> tuple[Billed, ...]:
    """What was billed by two looks at a cluster. A node that was replaced meanwhile ended when its successor began; one
    that is gone counts on, since nothing says when it went."""
    known = {(part.node, part.since, part.off) for part in now}
    gone = []
    for part in before:
        if (part.node, part.since, part.off) not in known:
            later = [each.since for each in now if part.node and each.node == part.node and each.since > part.since]
            gone.append(replace(part, until=min(later)) if part.until is None and later else part)
    return (*gone, *now)


def run_times(state: RunState, events: Iterable[Event] = ()) -> RunTimes | None:
    """The moments of a run; None: it does not say when it began.

    Args:
        events: those of an elastic run; without them, times without ranks count as training.
    """
    if state.started is None:
        return None
    launched, since, until = state.launched, state.training_since, state.training_until
    last: dict[str, float] = {}
    for rank in state.ranks:
        if rank.node and rank.ended is not None:
            last[rank.node] = max(rank.ended, last.get(rank.node, 0.0))
    if state.done and until is None and since is not None:
        # Its supervisor was killed: what is known of its end are its ranks'.
        until = max(last.values(), default=since)
    # Here: `launch` imports this module before it has nodes, and reads no run until it has.
    from hvdcloud.runs.slow_ranks import seconds_lost

    data_since = None
    if state.data:
        waited = state.data_seconds
        data_since = state.started if launched is None or waited is None else launched - waited
    elastic = state.elastic is not None
    without: list[tuple[float, float | None]] = []
    joins: list[tuple[str, float]] = []
    for event in sorted(events, key=lambda each: each.at) if elastic else ():
        if event.name == "world" and event.ranks is not None:
            if without and without[-1][1] is None:
                without[-1] = (without[-1][0], event.at)
            if event.ranks == 0:
                without.append((event.at, None))
        elif event.name == "node joins" and event.node:
            joins.append((event.node, event.at))
    return RunTimes(
        run=state.run,
        started=state.started,
        data_since=data_since,
        launched=launched,
        training_since=since,
        training_until=until,
        ended=state.ended,
        over=state.done,
        nodes=None if elastic else tuple(state.nodes),
        last_ranks={} if elastic else last,
        without_ranks=tuple(without),
        joins=tuple(joins),
        waited=seconds_lost(state.waits),
    )


def divide(
    billed: Sequence[Billed],
    *,
    now: float,
    nodes: Sequence[NodeTimes] = (),
    runs: Sequence[RunTimes] = (),
    all_runs: bool = True,
    teardown: float | None = None,
) -> tuple[Segment, ...]:
    """All that was billed until `now`, by category; the parts add up to it.

    Args:
        now: seconds since the epoch, as is `teardown`.
        nodes: what is known of the start of each node, also of those that were replaced.
        runs: those that the cluster has had.
        all_runs: it has had no others: a node that has joined and has no run is idle.
        teardown: when its nodes began to be deleted; None: they were not.
    """
    runs = sorted(runs, key=lambda run: run.started)
    spent_seconds, spent_dollars = dict.fromkeys(CATEGORIES, 0.0), dict.fromkeys(CATEGORIES, 0.0)
    for part in billed:
        timeline = _Timeline()
        if part.off:
            timeline.paint(OFF, part.since)
        elif part.node:
            _paint_node(timeline, part, nodes, runs, all_runs=all_runs, now=now)
            if teardown is not None:
                timeline.paint("teardown", teardown)
        lengths = timeline.lengths(part.since, part.since + part.seconds(now))
        for category, length in _with_waits(lengths, part.node, runs, now=now):
            spent_seconds[category] += length
            spent_dollars[category] += part.dollars_per_hour * length / 3600
    return tuple(
        Segment(category=each, seconds=spent_seconds[each], dollars=spent_dollars[each])
        for each in CATEGORIES
        if spent_seconds[each] > _NOTICEABLE
    )


def spent_text(spent: Sequence[Segment]) -> str:
    """`of it: boot 4.2 s, training 5 min 10 s ($0.08)`: times of all nodes together, and dollars from one cent on."""
    return "of it: " + ", ".join(map(_part_text, spent))


def _part_text(part: Segment) -> str:
    money = f" ({dollars(part.dollars)})" if part.dollars >= LEAST_SHOWN_DOLLARS else ""
    return f"{part.category} {seconds(part.seconds)}{money}"


def _paint_node(
    timeline: _Timeline,
    part: Billed,
    nodes: Sequence[NodeTimes],
    runs: Sequence[RunTimes],
    *,
    all_runs: bool,
    now: float,
) -> None:
    without_run = "idle" if all_runs else UNACCOUNTED
    until = now if part.until is None else part.until
    own = [each for each in nodes if each.node == part.node and part.since <= each.joined <= until]
    # One that a head has made joins a run without this machine.
    joins = [at for run in runs for node, at in run.joins if node == part.node and part.since <= at <= until]
    ready = min((*(each.joined for each in own), *joins), default=None)
    if ready is not None:
        boot = own[0].boot if own else {}
        timeline.paint("boot", part.since, ready)
        for at, category in sorted((at, _STEPS[step]) for step, at in boot.items() if step in _STEPS):
            timeline.paint(category, max(at, part.since), ready)
        timeline.paint(without_run, ready)
    for run in runs:
        begins = run.started if ready is None else max(run.started, ready)
        ends = run.ended if run.over else now
        if ready is None and part.since > run.started:
            # It came while the run was active, and nothing says when it took part.
            timeline.paint(UNACCOUNTED, part.since, ends)
        elif ends is None or ends > begins:
            _paint_run(timeline, run, part.node, begins=begins, ends=ends)
        if ends is not None:
            timeline.paint(without_run, max(ends, part.since))


def _with_waits(
    lengths: Iterable[tuple[str, float]], node: str, runs: Sequence[RunTimes], *, now: float
) -> Iterator[tuple[str, float]]:
    """The categories with their seconds, where the training of each run is divided into that and the waits for its slow
    ranks. Nobody has written down when those were, only for how long."""
    of_run = {_training(run): run for run in runs}
    for category, length in lengths:
        run = of_run.get(category)
        if run is None or run.training_since is None:
            yield category, length
            continue
        until = run.training_until if run.training_until is not None else now
        trained = max(length, until - run.training_since)
        waits = length * min(1.0, run.waited.get(node, 0.0) / trained)
        yield "waiting for ranks", waits
        yield "training", length - waits


def _training(run: RunTimes) -> str:
    """The category of a run's training, before that is divided."""
    return f"training of {run.run}"


def _paint_run(timeline: _Timeline, run: RunTimes, node: str, *, begins: float, ends: float | None) -> None:
    """A run on one node, from when it was there."""

    def paint(category: str, since: float | None, until: float | None) -> None:
        if since is not None and until is not None:
            timeline.paint(category, max(since, begins), until)

    if run.nodes is not None and run.nodes and node not in run.nodes:
        return
    timeline.paint(UNACCOUNTED, begins, ends)
    if run.launched is None and run.data_since is None:
        return
    trained = run.training_until if run.training_until is not None or run.over else ends
    launch_ends = run.training_since if run.training_since is not None else trained
    paint("start", run.started, run.launched if run.launched is not None else launch_ends)
    paint("data", run.data_since, run.launched if run.launched is not None else launch_ends)
    paint("start", run.launched, launch_ends)
    paint(_training(run), run.training_since, trained)
    for since, until in run.without_ranks:
        paint("waiting for ranks", since, trained if until is None else until)
    last = run.last_ranks.get(node)
    if last is not None and trained is not None and last < trained:
        paint("waiting for ranks", last, trained)
    if run.training_until is not None and run.ended is not None:
        paint("upload", run.training_until, run.ended)


class _Timeline:
    """One category at each moment; what is painted later covers what was there."""

    def __init__(self) -> None:
        self._starts = [-_FOREVER]
        self._categories = [UNACCOUNTED]

    def paint(self, category: str, since: float, until: float | None = None) -> None:
        """Give a time a category; `until` None: all that comes after."""
        end = _FOREVER if until is None else until
        if since >= end:
            return
        first, last = bisect_left(self._starts, since), bisect_right(self._starts, end)
        after = self._categories[last - 1]
        starts, categories = [since], [category]
        if end < _FOREVER:
            starts.append(end)
            categories.append(after)
        self._starts[first:last], self._categories[first:last] = starts, categories

    def lengths(self, since: float, until: float) -> Iterable[tuple[str, float]]:
        """The categories between two moments, each with its seconds."""
        ends = [*self._starts[1:], _FOREVER]
        for start, end, category in zip(self._starts, ends, self._categories, strict=True):
            if (length := min(end, until) - max(start, since)) > 0:
                yield category, length
