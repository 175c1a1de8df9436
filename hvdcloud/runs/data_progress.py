"""A run's data sets in words: how far they are on each node, and what waiting for them cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.state import RunState
from hvdcloud.units import counted, seconds, size

_PHASES = {"waiting": "not started yet", "fetching": "fetching", "ready": "ready", "failed": "failed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The data sets of a run, and what waiting for them cost."""

    nodes: Sequence[NodeData]
    seconds: float | None
    """For how long the start waited; None: it waits still, or the run ended before."""

    @classmethod
    def of(cls, state: RunState) -> RunData | None:
        """Of a run; None: it has no data sets."""
        if not state.data:
            return None
        return cls(nodes=state.data, seconds=state.data_seconds)

    @property
    def failure(self) -> NodeData | None:
        """The node that cannot have its data, before any rank has started."""
        failed = (each for each in self.nodes if each.phase == "failed")
        return next(failed, None) if self.seconds is None else None


def progress(data: NodeData) -> str:
    """`fetching, 40 % of 1.2 GB`."""
    text = _PHASES.get(data.phase, "not known")
    if data.phase == "failed":
        return f"{text}: {data.error}"
    if data.phase != "fetching" or not data.total_bytes:
        return text
    return f"{text}, {100 * data.bytes // data.total_bytes} % of {size(data.total_bytes)}"


def summary(state: RunState) -> str:
    """`1.2 GB on each of 2 nodes after 42.0 s`, `mounted on …`; empty for a run that has none, or has not waited to the
    end."""
    if not state.data or state.data_seconds is None:
        return ""
    # Of folders that are mounted, nothing is counted.
    what = (
        size(max(each.bytes for each in state.data))
        if any(each.files or each.bytes for each in state.data)
        else "mounted"
    )
    paid = state.data_seconds * state.about.gpus
    cost = f", in which its GPUs waited {seconds(paid)} together" if paid >= 1 else ""
    nodes = f"each of {counted(len(state.data), 'node')}" if len(state.data) > 1 else "its node"
    return f"{what} on {nodes} after {seconds(state.data_seconds)}{cost}"
