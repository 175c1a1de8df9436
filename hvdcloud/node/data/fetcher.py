"""The fetcher: one process per node that brings the data sets of the newest request, and outlives who asked for them.

It holds a lock, which the kernel frees when it dies. What it has verified stays on the disk, so that it may be killed
at any time and started again.
"""

from __future__ import annotations

import hashlib
import json

from hvdcloud.errors import NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node import paths, processes
from hvdcloud.node.files import lock_holder, read_json, write_json
from hvdcloud.node.records.active import take_over
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.spec import DataRequest

DATA_VARIABLE = "HVDCLOUD_DATA_SETS"
"""What a VM fetches from its start on: a request as JSON. A run waits for what is missing."""
START_SECONDS = 30.0
"""How long a fetcher may take to start."""
_WHAT = "the fetcher of data sets"


def start(request: DataRequest) -> None:
    """Start the fetcher, which works on after this process and its session; returns at once.

    One that works on the same request is left at work. One that works on another is ended.

    Raises NodeError: the fetcher did not start.
    """
    if _works_on(request):
        return
    errors = paths.volatile_dir() / "data.err"
    words = ("data-fetcher", json.dumps(request.to_json()))
    if why := processes.start_detached(*words, errors=errors, seconds=START_SECONDS):
        hint = "hvdcloud ssh shows the node; a full disk is a common cause"
        raise NodeError(f"{_WHAT} did not start: {why}", hint=hint)


def state() -> NodeData:
    """How far the data sets of the newest request are."""
    return NodeData.from_json(read_json(paths.data_state_file()))


def has_died() -> bool:
    """Whether the fetcher of the newest request ended before its work was done; `start` makes it continue."""
    # In this order: a fetcher that ends meanwhile has written its last state before.
    return not is_at_work() and state().phase not in ("ready", "failed")


def is_at_work() -> bool:
    """Whether a fetcher runs on this node."""
    return lock_holder(paths.data_fetcher_lock()) is not None


def end() -> None:
    """End the fetcher, if one runs: what it has verified stays. Raises NodeError: it does not end."""
    take_over(paths.data_fetcher_lock(), what=_WHAT).release()


def main(text: str) -> int:
    """The verb `data-fetcher REQUEST`: be the fetcher, in place of one that works on another request. Returns its exit
    code.

    Raises:
        UsageError: it is no request.
        NodeError: the fetcher before does not end.
    """
    request = DataRequest.from_json(parse_object(text))
    if _works_on(request):
        processes.detach()
        return 0
    # Held until this process ends.
    take_over(paths.data_fetcher_lock(), what=_WHAT, request=_digest(request))
    _write(NodeData(phase="waiting"))
    processes.detach()
    from hvdcloud.node.data.fetch import Fetch

    Fetch(request, _write).run()
    return 0


def _works_on(request: DataRequest) -> bool:
    return (lock_holder(paths.data_fetcher_lock()) or {}).get("request") == _digest(request)


def _digest(request: DataRequest) -> str:
    return hashlib.sha256(json.dumps(request.to_json(), sort_keys=True).encode()).hexdigest()


def _write(state: NodeData) -> None:
    write_json(paths.data_state_file(), state.to_json())
