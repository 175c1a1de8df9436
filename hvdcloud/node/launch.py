"""`launch`: start a run's supervisor and return; it outlives this process and the SSH connection."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import notify, paths, processes
from hvdcloud.node.channel import BEAT_SECONDS
from hvdcloud.node.elastic.supervisor import ElasticSupervisor
from hvdcloud.node.files import Lock
from hvdcloud.node.records import active, state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.finish import after
from hvdcloud.node.run.request import START_SECONDS, Elastic, Host, Request
from hvdcloud.node.run.supervisor import Supervisor
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.state import RunState

if TYPE_CHECKING:
    from hvdcloud.node.data.sets import DataRequest

_DETACH_SECONDS = 15.0


def main(run: str, request: dict[str, Any]) -> dict[str, Any]:
    """Launch a prepared run.

    Raises:
        UsageError: the request cannot be used, or the run was not prepared here or was already launched.
        ActiveRunError: a run is active.
        NodeError: the supervisor did not start.
    """
    try:
        wanted = Request(
            run=paths.check_run_id(run),
            cluster=str(request["cluster"]),
            hosts=tuple(str(host["name"]) for host in request["hosts"]),
            np=int(request["np"]),
            horovodrun=tuple(str(part) for part in request["horovodrun"]),
            gloo_timeout=float(request["gloo_timeout"]),
            controller=str(request.get("controller", "gloo")),
            elastic=_elastic(request),
            stuck=None if request.get("stuck") is None else float(request["stuck"]),
            data=_data(request.get("data")),
            beat=float(request.get("beat", BEAT_SECONDS)),
            start=float(request.get("start", START_SECONDS)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"launch: {type(error).__name__}: {error}", hint="hvdcloud run again") from error
    if not wanted.hosts or not wanted.horovodrun or wanted.np < 1:
        raise UsageError("launch: no hosts, no ranks or no horovodrun", hint="hvdcloud run again")
    Spec.load(run)
    lock = Lock(paths.supervisor_lock())
    if not lock.acquire({"run": run, **processes.describe_self()}):
        raise active.ActiveRunError(active.active_run() or "?")
    if state.state_file(run).exists():
        raise UsageError(f"run {run} was already launched", hint=f"hvdcloud logs {run}")
    current = RunState(
        run=run,
        cluster=wanted.cluster,
        state="starting",
        np=wanted.np,
        controller=wanted.controller,
        nodes=list(wanted.hosts),
        started=time.time(),
        about=about if isinstance(about := request.get("about"), dict) else {},
        down_when_done=bool(request.get("down_when_done", False)),
        data=[NodeData(node=name, phase="waiting") for name in _nodes_with_data(request)],
    )
    if request.get("detached"):
        state.record_event(run, "started detached")
    _detach(wanted, current, lock)
    return {"ok": True}


def _data(value: Any) -> DataRequest | None:
    if value is None:
        return None
    from hvdcloud.node.data.sets import DataRequest

    return DataRequest.from_json(value)


def _nodes_with_data(request: dict[str, Any]) -> list[str]:
    hosts = request["hosts"] if request.get("data") is not None else ()
    return [str(host["name"]) for host in hosts if int(host.get("slots", 1))]


def _elastic(request: dict[str, Any]) -> Elastic | None:
    wanted = request.get("elastic")
    if wanted is None:
        return None
    hosts = tuple(Host(str(host["name"]), int(host["index"]), int(host["slots"])) for host in request["hosts"])
    return Elastic(least=int(wanted["min"]), most=int(wanted["max"]), hosts=hosts)


def _detach(request: Request, current: RunState, lock: Lock) -> None:
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
        _become_supervisor(request, current, lock, writer)
    os.close(writer)
    os.waitpid(first, 0)
    ready, _, _ = select.select([reader], [], [], _DETACH_SECONDS)
    said = os.read(reader, 4096).decode(errors="replace") if ready else "it took too long"
    if said != "ready":
        hint = "hvdcloud ssh shows the head; a full disk is a common cause"
        raise NodeError(f"the supervisor of run {request.run} did not start: {said or 'it was killed'}", hint=hint)


def _become_supervisor(request: Request, current: RunState, lock: Lock, writer: int) -> None:
    code = 1
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        lock.describe({"run": request.run, **processes.describe_self()})
        state.reserve(request.run)
        _redirect(request.run)
        # Before the state, by which others find the run: the next verb may be `logs`.
        state.log_file(request.run).touch(mode=0o644)
        if not state.write(current):
            os.write(writer, b"its state could not be written")
            os._exit(1)
        os.write(writer, b"ready")
        os.close(writer)
        _supervise(request, current)
        lock.release()
        # In a process of its own: `stop` waits until this one is gone.
        if os.fork() == 0:
            after(current)
        code = 0
    except BaseException:  # noqa: BLE001 - the last frame of a detached process: nothing catches it
        traceback.print_exc()
    finally:
        os._exit(code)


def _supervise(request: Request, current: RunState) -> None:
    """Be the supervisor of a run. Whatever fails in this process, the run's state says that it ended, and why."""
    try:
        kind: type[Supervisor] = Supervisor
        if request.elastic is not None:
            kind = ElasticSupervisor
        kind(request, current).run()
    except Exception as error:
        # The agents end the run when this process's pipes close; only the state is left to write.
        current.state, current.result, current.ended = "done", "lost", time.time()
        current.reason = f"the run's supervisor failed: {type(error).__name__}: {error}"
        state.write(current)
        notify.start(request.run)
        sys.stderr.write(f"hvdcloud: supervisor of run {request.run}: {error!r}\n")
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
