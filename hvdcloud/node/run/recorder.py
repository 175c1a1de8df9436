"""What the state, the events and the log of an elastic run say about its nodes and its world."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hvdcloud.node.records import state
from hvdcloud.node.run.log import RunLog
from hvdcloud.runs.state import Member, RunState

SETTLED_SECONDS = 0.5
"""How long the number of ranks has to stay the same before it is written down."""


class Recorder:
    """Writes what has changed into the run's state, events and log."""

    def __init__(self, current: RunState, log: RunLog) -> None:
        self._state = current
        self._log = log
        self._world_changed_at: float | None = None
        self._members: Sequence[Member] = ()
        """As they were last written."""

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

    def making(self, nodes: Sequence[str]) -> None:
        """Write down which nodes the head is replacing, if that has changed."""
        if list(nodes) != list(self._state.making):
            self._state.making = nodes
            state.write(self._state)

    def joined(self, node: str) -> None:
        """Count a node among those of the run."""
        if node not in self._state.nodes:
            self._state.nodes = [*self._state.nodes, node]

    def left(self, nodes: Collection[str]) -> None:
        """No longer count nodes among those of the run."""
        self._state.nodes = [node for node in self._state.nodes if node not in nodes]
