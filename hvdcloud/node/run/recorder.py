"""What the state, the events and the log of a run say about its nodes, and of an elastic run about its world."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from hvdcloud.node.records import state
from hvdcloud.node.run.log import RunLog
from hvdcloud.node.uploads.drain import PREEMPTED, leaving_note
from hvdcloud.runs.log_lines import Lines, Speaker, counted, numbers_in, rank_and_text
from hvdcloud.runs.reports import NodeData, RankWaits
from hvdcloud.runs.state import Member, RunState

SETTLED_SECONDS = 0.5
"""How long the number of ranks has to stay the same before it is written down."""


class Recorder:
    """Writes what has changed into the run's state, events and log."""

    def __init__(self, current: RunState, log: RunLog) -> None:
        self._state = current
        self._log = log
        self.data = {each.node: each for each in current.data}
        """How far the nodes' data sets are."""
        self._changed = False
        self._world_changed_at: float | None = None
        self._members: Sequence[Member] = ()
        """As they were last written."""

    def write(self) -> None:
        self._changed = False
        self._state.data = [self.data[node] for node in sorted(self.data, key=lambda name: (len(name), name))]
        state.write(self._state)

    def write_changed(self) -> None:
        """Write what changes all the time, if it has changed."""
        if self._changed:
            self.write()

    def ready(self) -> None:
        """Every node is ready."""
        self._state.state = "running"
        state.write(self._state)
        state.record_event(self._state.run, "every node is ready")

    def training(self) -> None:
        """Every rank has started: from now on the run trains."""
        if self._state.training_since is None:
            self._state.training_since = time.time()
            state.write(self._state)

    def node_data(self, data: NodeData) -> None:
        """A node's data sets have come so far."""
        self.data[data.node] = data
        self._changed = True

    def waits(self, node: str, waits: Sequence[RankWaits]) -> None:
        """How long the ranks of a node have waited in collectives so far."""
        now = {each.rank for each in waits}
        # In an elastic run another node may have had this rank, and this node another rank.
        known = [each for each in self._state.waits if each.node != node and each.rank not in now]
        known += [replace(each, node=node) for each in waits]
        self._state.waits = sorted(known, key=lambda each: each.rank)
        self._changed = True

    def leaving(self, node: str, why: str) -> None:
        """A node is about to go; its agent uploads what it has, and the run continues until the node is gone."""
        event = "preempted" if why == PREEMPTED else "node leaves"
        state.record_event(self._state.run, event, node=node, detail=why)
        if why == PREEMPTED:
            self._state.nodes_preempted = sorted({*self._state.nodes_preempted, node})
            state.write(self._state)
        self._log.note(leaving_note(node, why))

    def event(self, name: str, node: str, detail: str, *, note: str) -> None:
        """Record an event, and write a line into the log."""
        state.record_event(self._state.run, name, node=node, detail=detail)
        self._log.note(note)

    def world(self, *, ranks: int, nodes: int, now: float) -> None:
        """Write down how many ranks train, once that has settled."""
        if ranks == self._state.world:
            self._world_changed_at = None
            return
        self._world_changed_at = self._world_changed_at or now
        if now - self._world_changed_at < SETTLED_SECONDS:
            return
        self._world_changed_at = None
        self._state.world = ranks
        state.record_event(self._state.run, "world", ranks=ranks, nodes=nodes)
        state.write(self._state)

    def members(self, members: Sequence[Member]) -> None:
        """Write the members down, if they have changed."""
        if members != self._members:
            self._members = self._state.members = members
            state.write(self._state)

    def joined(self, node: str) -> None:
        """Count a node among those of the run."""
        if node not in self._state.nodes:
            self._state.nodes = [*self._state.nodes, node]

    def left(self, nodes: Collection[str]) -> None:
        """No longer count nodes among those of the run."""
        self._state.nodes = [node for node in self._state.nodes if node not in nodes]


def newest_numbers(log: bytes, *, elastic: bool) -> dict[str, float]:
    """The newest of each number (`loss`, `accuracy`, `images/s`) in the end of a log; empty where it names none."""
    speaker, lines, found = Speaker(elastic=elastic), Lines(), dict[str, float]()
    for line in [*lines.feed(log), lines.rest()]:
        tagged = rank_and_text(line)
        if tagged is None or not speaker.may(tagged[0]):
            continue
        text = tagged[1].decode(errors="replace")
        at, numbers = counted(text), numbers_in(text)
        if (at or numbers) and speaker.says(tagged[0], at):
            found |= numbers
    return found
