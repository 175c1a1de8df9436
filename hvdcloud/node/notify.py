"""The head tells a person how a run ended."""

from __future__ import annotations

import time

from hvdcloud.node import paths
from hvdcloud.node.records import state
from hvdcloud.node.records.secrets_file import forget_notify, read_notify

WAIT_SECONDS = 10.0
"""How long the deletion of nodes waits for it."""
_POLL_SECONDS = 0.05


def tell(run: str) -> None:
    """Tell how a run has ended, if its owner wants that; blocks for minutes where the server does not answer."""
    from hvdcloud.runs.notice import message, send

    try:
        if address := read_notify(run):
            problem = send(address, message(state.read(run), log=state.end_of_log(run)))
            state.record_event(run, "could not tell" if problem else "told", detail=problem)
    finally:
        forget_notify(run)


def wait_told(run: str, *, seconds: float) -> None:
    """Wait until the end of a run was told, or could not be: before its node goes."""
    deadline = time.monotonic() + seconds
    while paths.notify_file(run).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
