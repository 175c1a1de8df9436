"""`launch`: start a run's supervisor, a process of its own that outlives this one and the SSH connection."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import paths, processes
from hvdcloud.node.elastic.horovod import HorovodSupervisor
from hvdcloud.node.elastic.torchrun import TorchrunSupervisor
from hvdcloud.node.files import Lock
from hvdcloud.node.records import active, state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.finish import after
from hvdcloud.node.run.supervisor import Supervisor
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.state import RunState

_START_SECONDS = 30.0
"""How long the supervisor may take until it can be asked and stopped."""
_ELASTIC: Mapping[str, Callable[[Spec, RunState], Supervisor]]
_ELASTIC = {"horovod": HorovodSupervisor, "torchrun": TorchrunSupervisor}


def main(run: str) -> dict[str, Any]:
    """Launch a prepared run.

    Raises:
        UsageError: the run was not prepared here, has no ranks, or was already launched.
        ActiveRunError: a run is active.
        NodeError: the supervisor did not start.
    """
    spec = Spec.load(run)
    if not spec.hosts or spec.np < 1:
        raise UsageError("launch: no hosts or no ranks", hint="hvdcloud run again")
    if other := active.active_run():
        raise active.ActiveRunError(other)
    if state.state_file(run).exists():
        raise UsageError(f"run {run} was already launched", hint=f"hvdcloud logs {run}")
    if why := processes.start_detached(
        "supervisor", run, errors=paths.run_dir(run) / "supervisor.err", seconds=_START_SECONDS
    ):
        hint = "hvdcloud ssh shows the head; a full disk is a common cause"
        raise NodeError(f"the supervisor of run {run} did not start: {why}", hint=hint)
    return {"ok": True}


def supervise(run: str) -> int:
    """`supervisor`: supervise a run until it has ended, and do what is left to do then. Returns the exit code.

    Whatever fails in this process, the run's state says that it ended, and why.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    spec = Spec.load(run)
    lock = Lock(paths.supervisor_lock())
    if not lock.acquire({"run": run, **processes.describe_self()}):
        os.write(1, b"another run has just been launched")
        return 1
    current = RunState(
        run=run,
        cluster=spec.cluster,
        state="starting",
        np=spec.np,
        controller=spec.controller,
        nodes=spec.names,
        started=time.time(),
        about=spec.about,
        down_when_done=spec.down_when_done,
        data=[NodeData(node=host.name, phase="waiting") for host in spec.hosts if spec.data],
    )
    if spec.detached:
        state.record_event(run, "started detached")
    state.reserve(run)
    # Before the state, by which others find the run: the next verb may be `logs`.
    state.log_file(run).touch(mode=0o644)
    if not state.write(current):
        os.write(1, b"its state could not be written")
        return 1
    processes.detach()
    try:
        supervisor = Supervisor(spec, current) if spec.elastic is None else _ELASTIC[spec.launcher](spec, current)
        supervisor.run()
    except Exception as error:  # noqa: BLE001 - the last frame of a detached process: nothing catches it
        # The agents end the run when this process's pipes close; only the state is left to write.
        current.state, current.result, current.ended = "done", "lost", time.time()
        current.reason = f"the run's supervisor failed: {type(error).__name__}: {error}"
        state.write(current)
        traceback.print_exc()
    lock.release()
    # In a process of its own: `stop` waits until this one is gone.
    if os.fork() == 0:
        after(current)
    return 0
