"""What the state, the events and the log of a run say about its nodes, and of an elastic run about its world."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from hvdcloud.node.records import state
from hvdcloud.node.run.log import RunLog
from hvdcloud.node.uploads.drain import PREEMPTED, leaving_note
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
        """Record that every node is ready."""
        self._state.state = "running"
        state.write(self._state)
        state.record_event(self._state.run, "every node is ready")

    def training(self) -> None:
        """Record that every rank has started: from now on the run trains."""
        if self._state.training_since is None:
            self._state.training_since = time.time()
            state.write(self._state)

    def node_data(self, data: NodeData) -> None:
        """Take how far a node's data sets are."""
        self.data[data.node] = data
        self._changed = True

    def waits(self, node: str, waits: Sequence[RankWaits]) -> None:
        """Take how long the ranks of a node have waited in collectives so far."""
        now = {each.rank for each in waits}
        # In an elastic run another node may have had this rank, and this node another rank.
        known = [each for each in self._state.waits if each.node != node and each.rank not in now]
        known += [replace(each, node=node) for each in waits]
        self._state.waits = sorted(known, key=lambda each: each.rank)
        self._changed = True

    def leaving(self, node: str, why: str) -> None:
        """Record that a node is about to go; its agent uploads its files, and the run continues until it is gone."""
        event = "preempted" if why == PREEMPTED else "node leaves"
        state.record_event(self._state.run, event, node=node, detail=why)
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
