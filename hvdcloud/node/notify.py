"""`notify`: the head tells a person how a run ended, in a process of its own: no server delays anything else."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time

from hvdcloud.node import paths
from hvdcloud.node.processes import own_program
from hvdcloud.node.records import state
from hvdcloud.node.records.secrets_file import forget_notify, read_notify

WAIT_SECONDS = 10.0
"""How long the deletion of nodes waits for it."""
_LIMIT_SECONDS = 600
"""After which the process ends, whatever it does then."""
_POLL_SECONDS = 0.05


def start(run: str) -> None:
    """Begin to tell how a run has ended, if its owner wants that; returns at once."""
    if not paths.notify_file(run).exists():
        return
    null = subprocess.DEVNULL
    # Where no process can be started, there are worse things to do than to tell.
    with contextlib.suppress(OSError):
        subprocess.Popen(own_program("notify", run), stdin=null, stdout=null, stderr=null, start_new_session=True)


def wait_told(run: str, *, seconds: float) -> None:
    """Wait until the end of a run was told, or could not be: before its node goes."""
    deadline = time.monotonic() + seconds
    while paths.notify_file(run).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def main(run: str) -> int:
    """Be that process. Returns its exit code."""
    from hvdcloud.runs.notice import message, send

    signal.alarm(_LIMIT_SECONDS)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        if address := read_notify(run):
            problem = send(address, message(state.read(run), log=state.end_of_log(run)))
            state.record_event(run, "could not tell" if problem else "told", detail=problem)
    finally:
        forget_notify(run)
    return 0
