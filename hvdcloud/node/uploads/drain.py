"""A node that is about to go: how it hears of that, and what is still done on it. On a Spot VM there are 30 seconds.

The run's agent asks the metadata server, where a VM has one (`watch`). Whatever else ends a node (a VM's shutdown,
`docker stop`) reaches the container's first process as SIGTERM, which has the agent end its part of the run (`drain`).
From either on, everything in the checkpoint directory goes to the bucket without waiting for its turn.

`instance/maintenance-event` is not watched: a VM with GPUs hears of maintenance an hour before, and has better things
to do in that hour than to leave; its end comes as a shutdown.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.request import ProxyHandler, Request, build_opener

from hvdcloud.node import machine, paths, processes
from hvdcloud.node.channel import ask
from hvdcloud.node.files import lock_holder
from hvdcloud.node.records.active import live_agents
from hvdcloud.node.uploads.loop import incomplete_runs
from hvdcloud.runs.reports import UploadReport

PREEMPTED = "preempted"
SHUT_DOWN = "shut down"
LEAVE_SECONDS = 25.0
"""How long the end of a container waits for its checkpoints: a Spot VM is switched off 30 s after its notice."""
WRITERS_SECONDS = 3.0
"""How long ranks that save, and a file that is being written, are waited for; `docker stop` kills after 10 s."""
WRITERS_SECONDS_ON_A_VM = 12.0
NOTICE_SECONDS = 1.0
"""Between two questions whether there is a notice."""
ANSWER_SECONDS = 1.0
"""What the answer is worth when the container ends already."""
_NAMED = 3
_NOTICE = "/computeMetadata/v1/instance/preempted"


def watch(noticed: Callable[[], None]) -> None:
    """Have `noticed` called, in another thread, once this node is preempted; never without a metadata server."""

    def wait() -> None:
        while not is_preempted():
            time.sleep(NOTICE_SECONDS)
        noticed()

    if machine.facts().get("metadata"):
        threading.Thread(target=wait, name="preemption", daemon=True).start()


def is_preempted() -> bool:
    """Whether this node's metadata server says so now; False where there is none, or none that answers in time."""
    if not (server := machine.facts().get("metadata")):
        return False
    request = Request(f"{server}{_NOTICE}", headers={"Metadata-Flavor": "Google"})
    try:
        # Without a proxy that the image may name: the server is the machine's own.
        with build_opener(ProxyHandler({})).open(request, timeout=ANSWER_SECONDS) as response:
            return bool(response.read(100).strip() == b"TRUE")
    except (OSError, HTTPException):
        return False


class Drain:
    """What is known of a node that leaves. `why`: `preempted` or another word that completes "it is being …"."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.ending = False
        """Whether its processes go too, as soon as all is in the bucket, or there is no more waiting for the rest."""
        self._began = time.monotonic()
        self._patience = WRITERS_SECONDS_ON_A_VM if machine.facts().get("metadata") else WRITERS_SECONDS

    @property
    def patience_left(self) -> float:
        """For how many seconds ranks and what they write are still waited for; the rest is for the uploads."""
        return max(0.0, self._began + self._patience - time.monotonic())

    def says(self, report: UploadReport) -> dict[str, Any]:
        """What `saved_note` reads: how far the checkpoints are, and how many seconds after the notice."""
        return {**report.to_json(), "seconds": time.monotonic() - self._began}


def leaving_note(node: str, why: str) -> str:
    """What the run's log says when a node leaves."""
    return f"node {node} is being {why}: its checkpoints are being uploaded"


def saved_note(node: str, saved: Mapping[str, Any]) -> str:
    """What the run's log says of the checkpoints of a node that leaves."""
    report, when = UploadReport.from_json(saved), f"({float(saved['seconds']):.1f} s after the notice)"
    files, missing = report.files, report.pending
    if not (missing or report.errors):
        return f"node {node}: all {files} files are in the bucket {when}"
    named = ", ".join(missing[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
    causes = "; ".join([*([f"{named} being written"] if missing else []), *report.errors[:1]])
    return f"node {node}: {files} files are in the bucket {when}, but not all: {causes}"


def drain(why: str, *, seconds: float = LEAVE_SECONDS) -> dict[str, dict[str, Any] | None]:
    """Have the live agents of this node, whose container ends, upload what there is and end their part of the run, and
    wait for them; the supervisor, if it is here, follows. At once where there is none.

    Args:
        why: completes "it is being …".

    Returns:
        what each run's agent said of its uploads; None if it said nothing in time.
    """
    deadline = time.monotonic() + seconds
    agents = live_agents()
    if not agents:
        return {}
    found: dict[str, dict[str, Any] | None] = dict.fromkeys(agents)
    for run in agents:
        # The time may be up.
        with contextlib.suppress(OSError):
            found[run] = ask(paths.agent_socket(run), {"type": "leave", "why": why}, deadline=deadline)
    holders = [*agents.values(), lock_holder(paths.supervisor_lock()) or {}]
    ending_too = [each for each in map(processes.described, holders) if each is not None]
    processes.wait_gone(ending_too, seconds=deadline - time.monotonic())
    return found


def upload_before_the_end() -> None:
    """Upload what is on this disk only; called when the container's first process got SIGTERM."""
    # Docker may end the container before the notice has come through.
    why = PREEMPTED if is_preempted() else SHUT_DOWN
    for run, saved in drain(why).items():
        note = saved_note(machine.name(), saved) if saved else "its agent did not say how far the checkpoints are"
        sys.stdout.write(f"hvdcloud: run {run}: {note}\n")
        sys.stdout.flush()


def is_all_in_bucket() -> bool:
    """Whether no run of this node has a checkpoint that is not in the bucket; False where that is not known."""
    try:
        return not incomplete_runs()
    except Exception as error:  # noqa: BLE001 - the container ends, even if anything in it is broken
        sys.stderr.write(f"hvdcloud: the state of the checkpoints is not known: {type(error).__name__}: {error}\n")
        return False
