"""`state`, `stop`, `flush`, `stacks`: what is asked of a node from outside a run."""

from __future__ import annotations

import signal
import time
from typing import Any

from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.node import notify, paths, processes
from hvdcloud.node.channel import ask
from hvdcloud.node.files import lock_holder, read_json
from hvdcloud.node.records import active, state
from hvdcloud.node.records.secrets_file import forget
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads import archive
from hvdcloud.node.uploads.loop import UploadLoop, incomplete_runs, is_complete
from hvdcloud.runs.reports import UploadReport

STOP_SECONDS = 600.0
"""A stopped run still uploads its checkpoints."""
FLUSH_SECONDS = 600.0
STACKS_SECONDS = 120.0
LOG_SECONDS = 10.0
"""How long the log of a run that has ended may still take on its way to the bucket."""
_POLL_SECONDS = 0.02


def show(run: str | None) -> dict[str, Any]:
    """State of one run, or of every run that was launched on this node, newest last. Raises UsageError: no such run."""
    return {"runs": [each.to_json() for each in ([state.read(run)] if run is not None else state.read_all())]}


def stop(run: str) -> dict[str, Any]:
    """End a run on every node and wait until it has ended; harmless if it has.

    Raises:
        UsageError: no such run.
        NodeError: it did not end in time.
    """
    current = state.read(run)
    if supervisor := processes.described(active.supervised(run) or {}):
        state.record_event(run, "asked to stop")
        processes.send([supervisor], signal.SIGTERM)
        seconds = STOP_SECONDS + Spec.load(run).grace
        if not processes.wait_gone([supervisor], seconds=seconds):
            why = f"run {run} did not end in {seconds:.0f} s; its checkpoints may still be on their way"
            raise NodeError(why, hint=f"hvdcloud logs -f {run}, or hvdcloud down --force")
        current = state.read(run)
    elif current.supervisor_dead:
        # The agents have ended the ranks when the supervisor died; this is for a node whose agent died as well.
        _wait_for_agent(run, seconds=STOP_SECONDS)
        processes.reap(run)
        current = state.read(run)
        if current.supervisor_dead:
            current.supervisor_dead, current.ended = False, time.time()
            state.write(current)
    return current.to_json()


def stacks(run: str) -> dict[str, Any]:
    """The stacks of a run's ranks on this node, as they are now; of a run that was stuck, on its head, those of all
    ranks as they were then. No ranks: it has none here.

    Raises:
        UsageError: the run's id is none.
        NodeError: the agent did not answer in time.
    """
    try:
        answer = ask(paths.agent_socket(run), {"type": "stacks"}, deadline=time.monotonic() + STACKS_SECONDS)
    except TimeoutError:
        why = f"the agent of run {run} did not take the stacks within {STACKS_SECONDS:.0f} s"
        raise NodeError(why, hint="hvdcloud stacks tries again; hvdcloud stop ends the run") from None
    kept = answer or read_json(state.stacks_file(run)) or {}
    return {"ranks": kept.get("ranks", []), "t": kept.get("t")}


def flush() -> dict[str, Any]:
    """Upload the checkpoints of every run of this node that are not all in the bucket. Returns, for each such run, what
    is still not there, and why."""
    found = {}
    deadline = time.monotonic() + FLUSH_SECONDS
    for run in incomplete_runs():
        try:
            report = _flush(run, deadline=deadline)
        except TimeoutError:
            report = UploadReport(errors=[f"run {run}: its agent did not answer in time"])
        except (HvdcloudError, OSError) as error:
            report = UploadReport(errors=[f"run {run}: {error}"])
        found[run] = {"pending": list(report.pending), "errors": list(report.errors)}
    wait_for_logs()
    return {"runs": found}


def _flush(run: str, *, deadline: float) -> UploadReport:
    """Upload what can be now, by the live agent if there is one. Raises HvdcloudError, OSError: it failed, or the time
    is up."""
    answer = ask(paths.agent_socket(run), {"type": "flush"}, deadline=deadline)
    if answer is not None:
        return UploadReport.from_json(answer["checkpoints"])
    # It may just be ending, and then says so in its report.
    _wait_for_agent(run, seconds=deadline - time.monotonic())
    if is_complete(run):
        return UploadReport(complete=True)
    report = UploadLoop(Spec.load(run)).finish()
    forget(run)
    return report


def wait_for_logs() -> None:
    """On the head, wait until the logs of runs that have ended are in the bucket, and their ends are told: this node is
    about to go."""
    for ended in state.read_all():
        if ended.done and ended.ended:
            archive.wait_kept(ended.run, seconds=ended.ended + LOG_SECONDS - time.time())
            notify.wait_told(ended.run, seconds=ended.ended + notify.WAIT_SECONDS - time.time())


def _wait_for_agent(run: str, *, seconds: float) -> None:
    """Wait until the run has no agent on this node. Raises NodeError: it still has one."""
    deadline = time.monotonic() + seconds
    while (holder := lock_holder(paths.agent_lock(run))) is not None:
        if time.monotonic() >= deadline:
            raise NodeError(f"the agent of run {run} is still running after {seconds:.0f} s", hint="hvdcloud status")
        if agent := processes.described(holder):
            processes.wait_gone([agent], seconds=deadline - time.monotonic())
        else:
            time.sleep(_POLL_SECONDS)
