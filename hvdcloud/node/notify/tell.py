"""`notify`: tell a person how a run ended, that its head is gone, or what it costs; once.

It is a process of its own, started by the supervisor and by agents: a server that is slow or gone, a name that is not
resolved and an exception here neither delay nor end anything else. Only that process imports what sends: every
supervisor and agent imports this module, and a run waits for them to start.

Before anything is sent, an object that must not exist yet is created in the run's bucket: `.hvdcloud/told`. Of all that
notice an end, the head, the other nodes and a client, the first one tells it. If that one dies between the object and
the message, nobody is told: at most once. Only the head sends without the object, where the bucket does not answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from hvdcloud.errors import HvdcloudError
from hvdcloud.node import machine, paths
from hvdcloud.node.files import lock_holder
from hvdcloud.node.processes import own_program
from hvdcloud.node.records import state
from hvdcloud.node.records.secrets_file import forget_notify, read_notify
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.uploads.run_bucket import open_run_bucket

if TYPE_CHECKING:
    from hvdcloud.runs.state import RunState
    from hvdcloud.storage.base import Bucket

END, COST, HEAD_LOST = "end", "cost", "head-lost"
"""What the process is started for."""
WAIT_SECONDS = 10.0
"""How long the deletion of nodes waits for it."""
SEND_SECONDS = 300.0
"""How long it tries, where its node stays."""
BUCKET_SECONDS = 10.0
HEAD_SECONDS = 30.0
"""How long a node without a connection to the head leaves it to the head to tell the end."""
RETRY_SECONDS = 30.0
"""How long nodes leave it to a client that may try a lost run again to say whether it does."""
LEAVING_RETRY_SECONDS = 6.0
"""Likewise, on a head that is about to go."""
_LIMIT_SECONDS = 600
"""After which the process ends, whatever it does then."""
_POLL_SECONDS = 0.05
_LOOK_SECONDS = 1.0


class _Claim(NamedTuple):
    """Whether this process is the one that tells."""

    ours: bool
    bucket: Bucket | None
    """None: it does not answer, or cannot be opened any more."""


def start(run: str, why: str) -> None:
    """Begin to tell, if this run's owner wants that; returns at once.

    Args:
        why: END, COST or HEAD_LOST.
    """
    if not paths.notify_file(run).exists():
        return
    null = subprocess.DEVNULL
    # Where no process can be started, there are worse things to do than to tell.
    with contextlib.suppress(OSError), (paths.run_dir(run) / "notify.err").open("ab") as errors:
        subprocess.Popen(
            own_program("notify", run, why), stdin=null, stdout=null, stderr=errors, start_new_session=True
        )


def cost_at(current: RunState) -> float:
    """When COST is due, in seconds since the epoch; infinity: never."""
    settings = read_notify(current.run)
    if settings is None or COST not in settings.on:
        return float("inf")
    from hvdcloud.runs.notice import cost_instant
    from hvdcloud.runs.state import About

    due = cost_instant(About.from_json(current.about), max_cost=settings.max_cost)
    return float("inf") if due is None else due


def wait_told(run: str, *, seconds: float) -> None:
    """Wait until the end of a run was told, or could not be: before its node goes."""
    deadline = time.monotonic() + seconds
    while paths.notify_file(run).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def main(run: str, why: str) -> int:
    """Be that process. Returns its exit code, always 0."""
    signal.alarm(_LIMIT_SECONDS)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    spec = Spec.load(run)
    if why == HEAD_LOST:
        time.sleep(HEAD_SECONDS)
        if lock_holder(paths.agent_lock(run)) is not None:
            return 0  # The run is active on this node again.
    try:
        if why == HEAD_LOST:
            _tell_of_lost_head(spec)
        else:
            _tell(spec, why)
    finally:
        if why != COST:
            forget_notify(run)
    return 0


def _tell(spec: Spec, why: str) -> None:
    """On the head."""
    from hvdcloud.node.notify.post import send
    from hvdcloud.runs.notice import Notice, event_of

    settings, current = read_notify(spec.run), state.read(spec.run)
    if settings is None or not settings.addresses:
        return
    event = COST if why == COST else event_of(current, on=settings.on)
    if event not in settings.on:
        return
    leaves = machine.name() in (*current.nodes_lost, *current.nodes_preempted)
    patience = LEAVING_RETRY_SECONDS if leaves else RETRY_SECONDS
    if event == "lost" and settings.retries and _client_tells(spec, seconds=patience):
        return
    claim = _claim(spec, COST if why == COST else END)
    if claim.ours or claim.bucket is None:
        notice = Notice.of(current, event=event, settings=settings, log=state.end_of_log(spec.run), now=time.time())
        outcome = send(notice, settings.addresses, within=SEND_SECONDS)
        _record(spec, claim.bucket, event, outcome)


def _tell_of_lost_head(spec: Spec) -> None:
    """On another node, which has lost the connection to the head: the head may be gone, or only this connection."""
    from hvdcloud.node.notify.post import send
    from hvdcloud.runs.notice import Notice

    settings = read_notify(spec.run)
    if settings is None or "lost" not in settings.on or not settings.addresses:
        return
    if settings.retries and _client_tells(spec, seconds=RETRY_SECONDS):
        return
    # An elastic run may continue without this node: its end is told by an object of its own.
    claim = _claim(spec, HEAD_LOST if spec.elastic else END)
    if claim.ours:
        reason = f"node {spec.name} has lost the connection to the head, and was not told that the run has ended"
        from hvdcloud.runs.state import RunState

        lost = RunState(run=spec.run, cluster=spec.cluster, state="done", result="lost", reason=reason)
        notice = Notice.of(lost, event="lost", settings=settings, log=b"", now=time.time())
        send(replace(notice, checkpoint_files=None), settings.addresses, within=SEND_SECONDS)


def _client_tells(spec: Spec, *, seconds: float) -> bool:
    """Whether the client that follows a lost run says in time that it tells the end, or that it tries the run again."""
    from hvdcloud.checkpoints.manifest import told_name

    name, deadline = told_name(spec.cluster, spec.run, END), time.monotonic() + seconds
    try:
        bucket = open_run_bucket(spec, retry_seconds=BUCKET_SECONDS)
        while bucket.stat(name) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
    except HvdcloudError:
        # Without the bucket the client cannot say it either.
        return False
    return True


def _claim(spec: Spec, what: str) -> _Claim:
    from hvdcloud.checkpoints.manifest import told_name
    from hvdcloud.storage.base import PreconditionError

    name = told_name(spec.cluster, spec.run, what)
    mark = json.dumps({"by": spec.name, "at": time.time(), "nonce": os.urandom(8).hex()}).encode()
    try:
        bucket = open_run_bucket(spec, retry_seconds=BUCKET_SECONDS)
        try:
            bucket.write(name, mark, if_generation=0)
        except PreconditionError:
            # It may be our own, whose answer was lost.
            return _Claim(ours=bucket.read(name) == mark, bucket=bucket)
    except (HvdcloudError, OSError) as error:
        sys.stderr.write(f"hvdcloud: {what} of run {spec.run} is told without {name}: {error}\n")
        return _Claim(ours=False, bucket=None)
    return _Claim(ours=True, bucket=bucket)


def _record(spec: Spec, bucket: Bucket | None, event: str, outcome: dict[str, str]) -> None:
    """Write down what was told, in the run's events."""
    from hvdcloud.checkpoints.manifest import events_name

    for kind, problem in outcome.items():
        said = f"{kind}: {problem}" if problem else kind
        state.record_event(spec.run, "could not tell" if problem else "told", detail=f"{event}, {said}")
    if bucket is not None and event != COST:
        # The log and the events may be there already.
        with contextlib.suppress(HvdcloudError, OSError):
            bucket.write(events_name(spec.cluster, spec.run), state.events_file(spec.run).read_bytes())
