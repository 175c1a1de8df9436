"""A node's agent waits for the data sets of its run, which a process of their own fetches (node/data)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.node.data import fetcher
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.spec import DataRequest

_POLL_SECONDS = 0.1
_SAY_SECONDS = 0.5
_MOST_STARTS = 3
"""How often a fetcher that was killed is started again."""


def wait_for_data(request: DataRequest, *, say: Callable[[NodeData], None], ending: threading.Event) -> str:
    """Block until the data sets of a run are on this node, or cannot be. Returns why they cannot; empty: they are.

    Args:
        say: told how far they are, at most twice a second, and of the end.
        ending: the run ends on this node, and nothing is waited for.
    """
    try:
        return _wait(request, say=say, ending=ending)
    except (HvdcloudError, OSError) as error:
        hint, code = (error.hint, int(error.code)) if isinstance(error, HvdcloudError) else ("", None)
        say(NodeData(phase="failed", error=str(error), hint=hint, exit_code=code))
        return str(error)


def _wait(request: DataRequest, *, say: Callable[[NodeData], None], ending: threading.Event) -> str:
    said, say_at, starts = NodeData(), 0.0, 1
    fetcher.start(request)
    while not ending.is_set():
        if fetcher.has_died():
            if starts > _MOST_STARTS:
                hint = "hvdcloud run starts it again: what is verified is not fetched again"
                raise NodeError("the fetcher of data sets ended before its work was done", hint=hint)
            starts += 1
            fetcher.start(request)
        data = fetcher.state()
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
