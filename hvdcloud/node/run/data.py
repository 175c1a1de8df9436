"""A node's agent waits for the data sets of its run, which a process of their own fetches (node/data)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from hvdcloud.errors import HvdcloudError
from hvdcloud.node.data import fetcher
from hvdcloud.node.data.sets import DataState
from hvdcloud.node.records.spec import Spec
from hvdcloud.runs.reports import NodeData

_POLL_SECONDS = 0.1
_SAY_SECONDS = 0.5
_MOST_STARTS = 3
"""How often a fetcher that was killed is started again."""
_PHASES = ("failed", "verifying", "fetching", "listing", "waiting")
"""What is said of several data sets: the first of these that one of them is in."""


def wait_for_data(spec: Spec, *, say: Callable[[NodeData], None], ending: threading.Event) -> str:
    """Block until the data sets of a run are on this node, or cannot be. Returns why they cannot; empty: they are.

    Args:
        say: told how far they are, at most twice a second, and of the end.
        ending: the run ends on this node, and nothing is waited for.
    """
    try:
        return _wait(spec, say=say, ending=ending)
    except (HvdcloudError, OSError) as error:
        hint, code = (error.hint, int(error.code)) if isinstance(error, HvdcloudError) else ("", None)
        say(NodeData(node=spec.name, phase="failed", error=str(error), hint=hint, exit_code=code))
        return str(error)


def _wait(spec: Spec, *, say: Callable[[NodeData], None], ending: threading.Event) -> str:
    assert spec.data is not None
    said, say_at, starts = NodeData(), 0.0, 0
    while not ending.is_set():
        # `prepare` has begun; the fetcher may have been killed since.
        if starts < _MOST_STARTS and fetcher.has_died():
            starts += 1
            fetcher.start(spec.data)
        data = summary(spec.name, fetcher.states())
        over = data.phase in ("ready", "failed")
        if data != said and (over or time.monotonic() >= say_at):
            said, say_at = data, time.monotonic() + _SAY_SECONDS
            say(data)
        if over:
            return data.error
        ending.wait(_POLL_SECONDS)
    # Of a run that has ended, nobody waits for the rest; what has arrived is not fetched again.
    fetcher.end()
    return ""


def summary(node: str, states: Sequence[DataState]) -> NodeData:
    """The states of a node's data sets as one."""
    phases = {state.phase for state in states}
    failed = next((state for state in states if state.phase == "failed"), None)
    return NodeData(
        node=node,
        phase=next((phase for phase in _PHASES if phase in phases), "ready"),
        bytes=sum(state.bytes for state in states),
        total_bytes=sum(state.total_bytes for state in states),
        files=sum(state.files for state in states),
        total_files=sum(state.total_files for state in states),
        seconds=round(sum(state.seconds or 0.0 for state in states), 3),
        error=f"data set {failed.name}: {failed.error}" if failed else "",
        hint=failed.hint if failed else "",
        exit_code=failed.exit_code if failed else None,
    )
