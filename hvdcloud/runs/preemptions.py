"""How often the Spot nodes of earlier runs were preempted, for what `run.retry` will cost. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hvdcloud.runs.state import About, RunState
from hvdcloud.units import counted

ASSUMED_HOURS = 6.0
"""From one preemption to the next, where nothing was observed."""
LEAST_HOURS = 0.5
"""No estimate is made with less."""
LEAST_NODE_HOURS = 1.0
"""What was seen in less time says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemptions:
    """What runs that have ended tell."""

    count: int
    """Nodes that had the notice of a preemption; one that came back and had it again counts once."""
    node_hours: float
    """Of Spot nodes, from their run's start to its end."""

    @property
    def text(self) -> str:
        """`3 preemptions in 41 node-hours`."""
        count = counted(self.count, "preemption") if self.count else "no preemption"
        return f"{count} in {self.node_hours:,.{0 if self.node_hours >= 10 else 1}f} node-hours"

    def hours_between(self, nodes: int) -> float | None:
        """From one preemption to the next in a cluster of so many Spot nodes; None: the assumption is worth more.

        No preemption counts as one that comes now, once that is rarer than what is assumed.
        """
        hours = self.node_hours / max(1, self.count) / nodes
        if self.node_hours < LEAST_NODE_HOURS or (not self.count and hours < ASSUMED_HOURS):
            return None
        return max(LEAST_HOURS, hours)


def observed(states: Iterable[RunState]) -> Preemptions:
    """What was seen in these runs; those that had no Spot nodes, or whose end is not known, tell nothing.

    An elastic run counts as if it had kept as many nodes as it began with.
    """
    count, seconds = 0, 0.0
    for state in states:
        spot = min(About.from_json(state.about).spot_nodes, len(state.nodes))
        if spot > 0 and state.started is not None and state.ended is not None and state.ended > state.started:
            count += len(set(state.nodes_preempted))
            seconds += spot * (state.ended - state.started)
    return Preemptions(count=count, node_hours=seconds / 3600)
