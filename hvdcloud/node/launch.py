"""`launch`: start a run's supervisor and return; it outlives this process and the SSH connection."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from typing import Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import notify, paths, processes
from hvdcloud.node.elastic.supervisor import ElasticSupervisor
from hvdcloud.node.files import Lock
from hvdcloud.node.records import active, state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.finish import after
from hvdcloud.node.run.supervisor import Supervisor
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.state import RunState

_DETACH_SECONDS = 15.0


def main(run: str) -> dict[str, Any]:
    """Launch a prepared run.

    Raises:
        UsageError: the run was not prepared here, has no ranks, or was already launched.
        ActiveRunError: a run is active.
        NodeError: the supervisor did not start.
    """
    spec = Spec.load(run)
    if not spec.hosts or not spec.horovodrun or spec.np < 1:
        raise UsageError("launch: no hosts, no ranks or no horovodrun", hint="hvdcloud run again")
    lock = Lock(paths.supervisor_lock())
    if not lock.acquire({"run": run, **processes.describe_self()}):
        raise active.ActiveRunError(active.active_run() or "?")
    if state.state_file(run).exists():
        raise UsageError(f"run {run} was already launched", hint=f"hvdcloud logs {run}")
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
        data=[NodeData(node=host.name, phase="waiting") for host in spec.hosts if host.slots and spec.data],
    )
    if spec.detached:
        state.record_event(run, "started detached")
    _detach(spec, current, lock)
    return {"ok": True}


def _detach(spec: Spec, current: RunState, lock: Lock) -> None:
    """Start the supervisor in a session of its own and wait until it can be asked and stopped. Raises NodeError: it did
    not get that far."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    first = os.fork()
    if first == 0:
        os.close(reader)
        # Two forks: PID 1 inherits the supervisor, and it can never take a terminal.
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        _become_supervisor(spec, current, lock, writer)
    os.close(writer)
    os.waitpid(first, 0)
    ready, _, _ = select.select([reader], [], [], _DETACH_SECONDS)
    said = os.read(reader, 4096).decode(errors="replace") if ready else "it took too long"
    if said != "ready":
        hint = "hvdcloud ssh shows the head; a full disk is a common cause"
        raise NodeError(f"the supervisor of run {spec.run} did not start: {said or 'it was killed'}", hint=hint)


def _become_supervisor(spec: Spec, current: RunState, lock: Lock, writer: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        lock.describe({"run": spec.run, **processes.describe_self()})
        state.reserve(spec.run)
        _redirect(spec.run)
        # Before the state, by which others find the run: the next verb may be `logs`.
        state.log_file(spec.run).touch(mode=0o644)
        if not state.write(current):
            os.write(writer, b"its state could not be written")
            os._exit(1)
        os.write(writer, b"ready")
        os.close(writer)
        _supervise(spec, current)
        lock.release()
        # In a process of its own: `stop` waits until this one is gone.
        if os.fork() == 0:
            after(current)
        code = 0
    except BaseException:  # noqa: BLE001 - the last frame of a detached process: nothing catches it
        traceback.print_exc()
    finally:
        os._exit(code)


def _supervise(spec: Spec, current: RunState) -> None:
    """Be the supervisor of a run. Whatever fails in this process, the run's state says that it ended, and why."""
    try:
        kind: type[Supervisor] = Supervisor
        if spec.elastic is not None:
            kind = ElasticSupervisor
        kind(spec, current).run()
    except Exception as error:
        # The agents end the run when this process's pipes close; only the state is left to write.
        current.state, current.result, current.ended = "done", "lost", time.time()
        current.reason = f"the run's supervisor failed: {type(error).__name__}: {error}"
        state.write(current)
        notify.start(spec.run)
        sys.stderr.write(f"hvdcloud: supervisor of run {spec.run}: {error!r}\n")
        raise


def _redirect(run: str) -> None:
    """Standard streams away from the SSH connection, which could not end otherwise."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        errors = os.open(paths.run_dir(run) / "supervisor.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        errors = null
    for target, source in ((0, null), (1, null), (2, errors)):
        os.dup2(source, target)
    for descriptor in {null, errors} - {0, 1, 2}:
        os.close(descriptor)
