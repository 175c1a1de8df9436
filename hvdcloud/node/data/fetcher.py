"""The fetcher: one process per node that brings the data sets of the newest request, and outlives who asked for them.

It holds a lock, which the kernel frees when it dies. What it has verified stays on the disk, so that it may be killed
at any time and started again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hvdcloud.errors import ExitCode, NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node import paths, processes
from hvdcloud.node.data.sets import FAILED, READY, DataState, states_from_json
from hvdcloud.node.files import Lock, lock_holder, read_json, write_json
from hvdcloud.node.records.active import take_over
from hvdcloud.runs.spec import DataRequest

DATA_VARIABLE = "HVDCLOUD_DATA_SETS"
"""What a VM fetches from its start on: a request as JSON. A run waits for what is missing."""
START_SECONDS = 30.0
"""How long a fetcher may take to start."""
_DIED = "the fetcher of data sets ended before its work was done"
_DIED_HINT = "hvdcloud run starts it again: what is verified is not fetched again"
_POLL_SECONDS = 0.02


def begin() -> dict[str, Any]:
    """The verb `data`: start what the environment asks for. Raises UsageError: it asks for none; NodeError: see
    start."""
    start(DataRequest.from_json(parse_object(os.environ.get(DATA_VARIABLE, ""))))
    return show()


def show() -> dict[str, Any]:
    """The verb `data-state`."""
    return {"states": [each.to_json() for each in states()]}


def start(request: DataRequest) -> None:
    """Start the fetcher, which works on after this process and its session; returns at once.

    One that works on the same request is left at work. One that works on another is ended.

    Raises:
        NodeError: the fetcher did not start, or the one before did not end.
    """
    with _starting():
        holder = lock_holder(paths.data_fetcher_lock())
        if holder is None or holder.get("request") != _digest(request):
            _end_other()
            write_json(paths.data_request_file(), request.to_json(), mode=0o600)
            write_states(tuple(DataState(name=each.name) for each in request.sets))
            errors = paths.volatile_dir() / "data.err"
            if why := processes.start_detached("data-fetcher", errors=errors, seconds=START_SECONDS):
                hint = "hvdcloud ssh shows the node; a full disk is a common cause"
                raise NodeError(f"the fetcher of data sets did not start: {why}", hint=hint)


def states() -> tuple[DataState, ...]:
    """Of each data set of the newest request. Those that a fetcher left unfinished when it died are failed."""
    # In this order: a fetcher that ends meanwhile has written its last states before.
    alive = is_at_work()
    found = states_from_json(read_json(paths.data_states_file()))
    died: dict[str, Any] = {"phase": FAILED, "error": _DIED, "hint": _DIED_HINT, "exit_code": int(ExitCode.NODE)}
    return found if alive else tuple(each if each.phase in (READY, FAILED) else replace(each, **died) for each in found)


def has_died() -> bool:
    """Whether the fetcher of the newest request ended before its work was done; `start` makes it continue."""
    return not is_at_work() and (not (found := states()) or any(each.error == _DIED for each in found))


def is_at_work() -> bool:
    """Whether a fetcher runs on this node."""
    return lock_holder(paths.data_fetcher_lock()) is not None


def end() -> None:
    """End the fetcher, if one runs: what it has verified stays. Raises NodeError: it does not end."""
    with _starting():
        _end_other()


def write_states(found: tuple[DataState, ...]) -> None:
    """For the fetcher: say how far it is."""
    write_json(paths.data_states_file(), {"states": [each.to_json() for each in found]})


def main() -> int:
    """The verb `data-fetcher`: be the fetcher of the newest request. Returns its exit code: 1, if there is another."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    request = DataRequest.from_json(read_json(paths.data_request_file()))
    lock = Lock(paths.data_fetcher_lock())
    if not lock.acquire({"request": _digest(request), **processes.describe_self()}):
        return 1
    processes.detach()
    from hvdcloud.node.data import fetch

    fetch.fetch_all(request, publish=write_states)
    return 0


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Held while a fetcher is started: two starts at once would end each other's."""
    lock = Lock(paths.data_fetcher_lock().with_suffix(".start"))
    deadline = time.monotonic() + 2 * START_SECONDS
    while not lock.acquire({"pid": os.getpid()}):
        if time.monotonic() >= deadline:
            raise NodeError("another process has been starting the fetcher of data sets for long", hint="hvdcloud run")
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _digest(request: DataRequest) -> str:
    return hashlib.sha256(json.dumps(request.to_json(), sort_keys=True).encode()).hexdigest()


def _end_other() -> None:
    """End a fetcher that works on what nobody wants. It may be killed at any time: see above."""
    take_over(paths.data_fetcher_lock(), what="the fetcher of data sets").release()
