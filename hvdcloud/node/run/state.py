"""What is known of a run, in one JSON file on the head.

`state.json` is written by the run's supervisor alone (by the head's agent if the supervisor was killed) and replaced in
one move; the keys are those of `fresh`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.node.files import is_disk_full, lock_holder, read_json, write_json
from hvdcloud.node.paths import run_dir, runs_dir, supervisor_lock

State = dict[str, Any]

_BALLAST_BYTES = 1 << 18
SUPERVISOR_GONE = "the run's supervisor on the head ended unexpectedly"


def state_file(run: str) -> Path:
    """Of one run, on the head."""
    return run_dir(run) / "state.json"


def log_file(run: str) -> Path:
    """Of one run, on the head."""
    return run_dir(run) / "log"


def _ballast(run: str) -> Path:
    return run_dir(run) / ".ballast"


def fresh(*, run: str, cluster: str, np: int, controller: str, nodes: list[str]) -> State:
    """The state of a run that is about to start."""
    return {
        "run": run,
        "cluster": cluster,
        "state": "starting",
        "result": None,
        "exit_code": None,
        "reason": "",
        "np": np,
        "controller": controller,
        "nodes": nodes,
        "started": time.time(),
        "ended": None,
        "ranks": [],
        "nodes_lost": [],
        "checkpoints": {"complete": False, "files": 0, "pending": [], "errors": [], "skipped": []},
    }


def reserve(run: str) -> None:
    """Set disk space aside, so that how the run ended can be written down on a full disk too."""
    with contextlib.suppress(OSError):
        descriptor = os.open(_ballast(run), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, _BALLAST_BYTES)
        finally:
            os.close(descriptor)


def write(state: State) -> bool:
    """Replace the run's state file; False, with a word on standard error, where even the reserve did not help."""
    run = state["run"]
    if state["state"] == "done":
        _ballast(run).unlink(missing_ok=True)
    try:
        try:
            write_json(state_file(run), state)
        except OSError as error:
            if not is_disk_full(error):
                raise
            _ballast(run).unlink(missing_ok=True)
            write_json(state_file(run), state)
    except OSError as error:
        sys.stderr.write(f"hvdcloud: the state of run {run} could not be written: {error}\n")
        return False
    return True


def read(run: str) -> State:
    """The run's state as it really is: `lost` where its supervisor is gone without having said how the run ended.

    Raises:
        UsageError: no such run on this node.
    """
    state = read_json(state_file(run))
    if state is not None and state["state"] != "done" and not supervised(run):
        # It may have ended between the two looks.
        state = read_json(state_file(run)) or state
        if state["state"] != "done":
            state |= {"state": "done", "result": "lost", "reason": SUPERVISOR_GONE, "supervisor_dead": True}
    if state is None:
        raise UsageError(f"run {run} is not known on this node", hint="`hvdcloud status` shows the runs")
    return state


def read_all() -> list[State]:
    """Every run that was launched on this node, newest last."""
    try:
        names = sorted(entry.name for entry in runs_dir().iterdir())
    except FileNotFoundError:
        return []
    states = []
    for name in names:
        with contextlib.suppress(UsageError):
            states.append(read(name))
    return states


def supervised(run: str) -> int | None:
    """Process id of the run's live supervisor; None when there is none."""
    holder = lock_holder(supervisor_lock())
    if holder is None or holder.get("run", run) != run:
        return None
    return int(holder.get("pid", 0))


def active_run() -> str | None:
    """The run that has a live supervisor on this node."""
    holder = lock_holder(supervisor_lock())
    return None if holder is None else str(holder.get("run", "?"))
