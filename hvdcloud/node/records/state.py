"""The files on the head that say what is known of a run: `state.json` and `events.jsonl`.

`state.json` is written by the run's supervisor alone (by the head's agent if the supervisor was killed) and replaced in
one move. runs/state.py says what is in them.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hvdcloud.errors import UsageError
from hvdcloud.node.files import is_disk_full, read_json, write_json
from hvdcloud.node.paths import run_dir, runs_dir
from hvdcloud.node.records.active import supervised
from hvdcloud.runs.reports import RankRecord, UploadReport
from hvdcloud.runs.stacks import RankStacks
from hvdcloud.runs.state import Event, RunState

_BALLAST_BYTES = 1 << 18
_MOST_EVENT_BYTES = 1 << 17
_END_OF_LOG_BYTES = 1 << 20
SUPERVISOR_GONE = "the run's supervisor on the head ended unexpectedly"


def state_file(run: str) -> Path:
    """Of one run, on the head."""
    return run_dir(run) / "state.json"


def events_file(run: str) -> Path:
    """Of one run, on the head: a JSON object per line."""
    return run_dir(run) / "events.jsonl"


def stacks_file(run: str) -> Path:
    """Of one run that was stuck, on the head: every rank's stacks, as runs/stacks.py reads them."""
    return run_dir(run) / "stacks.json"


def write_stacks(run: str, stacks: Sequence[RankStacks]) -> None:
    """Keep the stacks of a run that was stuck; on a full disk its state still says where the ranks are."""
    with contextlib.suppress(OSError):
        ranks = [each.to_json() for each in stacks]
        write_json(stacks_file(run), {"v": 1, "run": run, "t": round(time.time(), 3), "ranks": ranks})


def log_file(run: str) -> Path:
    """Of one run, on the head."""
    return run_dir(run) / "log"


def end_of_log(run: str) -> bytes:
    """The last MiB of a run's log, which is more than a traceback has; empty where there is no log."""
    try:
        with log_file(run).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _END_OF_LOG_BYTES))
            return file.read(_END_OF_LOG_BYTES)
    except OSError:
        return b""


def _ballast(run: str) -> Path:
    return run_dir(run) / ".ballast"


def reserve(run: str) -> None:
    """Set disk space aside, so that how the run ended can be written down on a full disk too."""
    with contextlib.suppress(OSError), _ballast(run).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _BALLAST_BYTES)


def write(state: RunState) -> bool:
    """Replace the run's state file; False, with a line on standard error, where even the reserve did not help."""
    run = state.run
    if state.done:
        _ballast(run).unlink(missing_ok=True)
    try:
        try:
            write_json(state_file(run), state.to_json())
        except OSError as error:
            if not is_disk_full(error):
                raise
            _ballast(run).unlink(missing_ok=True)
            write_json(state_file(run), state.to_json())
    except OSError as error:
        sys.stderr.write(f"hvdcloud: the state of run {run} could not be written: {error}\n")
        return False
    return True


def read(run: str) -> RunState:
    """The run's state as it really is: `lost` if its supervisor is gone and has not said how the run ended. Raises
    UsageError: no such run on this node."""
    state = _stored(run)
    if state is not None and not state.done and not supervised(run):
        # It may have ended between the two reads.
        state = _stored(run) or state
        if not state.done:
            state.state, state.result, state.reason = "done", "lost", SUPERVISOR_GONE
            state.supervisor_dead = True
    if state is None:
        raise UsageError(f"run {run} is not known on this node", hint="`hvdcloud status` shows the runs")
    return state


def record_orphaned_end(run: str, *, ranks: Mapping[int, RankRecord], report: UploadReport) -> bool:
    """Write down how a run ended whose supervisor is dead, as far as the head's agent knows; False: it is not dead."""
    if supervised(run) is not None:
        return False
    current = read(run)
    if not current.supervisor_dead:
        return False
    known = {record.rank: record for record in current.ranks} | dict(ranks)
    current.supervisor_dead = False
    current.ended = time.time()
    current.ranks = [known[rank] for rank in sorted(known)]
    # The other nodes' agents finish by themselves and were not heard.
    current.checkpoints = replace(report, complete=report.complete and len(current.nodes) == 1)
    write(current)
    return True


def _stored(run: str) -> RunState | None:
    found = read_json(state_file(run))
    return None if found is None else RunState.from_json(found)


def read_all() -> list[RunState]:
    """Every run that was launched on this node, newest last."""
    states = []
    for name in sorted(folder.name for folder in runs_dir().glob("*")):
        with contextlib.suppress(UsageError):
            states.append(read(name))
    return states


def record_event(
    run: str, name: str, *, node: str = "", detail: str = "", ranks: int | None = None, nodes: int | None = None
) -> None:
    """Write an event down. It is only for people: a full disk, or very many events, prevent nothing else."""
    event = Event(at=time.time(), name=name, node=node, detail=detail, ranks=ranks, nodes=nodes)
    with contextlib.suppress(OSError), events_file(run).open("ab", buffering=0) as file:
        if os.fstat(file.fileno()).st_size < _MOST_EVENT_BYTES:
            file.write(json.dumps(event.to_json()).encode() + b"\n")
