"""`logs`: a run's log as it grows, until the run has ended."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import IO

from hvdcloud.errors import UsageError
from hvdcloud.node.records import state

_POLL_SECONDS = 0.2
"""Containers' file systems do not all report changes, so the log is polled."""
_READ_SIZE = 1 << 18


def main(run: str, *, offset: int, follow: bool, output: IO[bytes]) -> int:
    """Copy the log to `output`, and the state as one line of JSON to standard error.

    Args:
        offset: bytes of the log that the caller already has.
        follow: stay until the run has ended.

    Raises:
        UsageError: no such run on this node.
    """
    current = state.read(run)
    try:
        log = state.log_file(run).open("rb", buffering=0)
    except FileNotFoundError:
        raise UsageError(f"run {run} has no log on this node", hint="`hvdcloud status` shows the runs") from None
    followed = follow and not current.done
    with log:
        if followed:
            state.record_event(run, "client attached")
        log.seek(offset)
        try:
            while True:
                ended = not follow or current.done
                while data := log.read(_READ_SIZE):
                    output.write(data)
                    output.flush()
                if ended:
                    break
                time.sleep(_POLL_SECONDS)
                if _hung_up(output):
                    raise BrokenPipeError
                current = state.read(run)
        except BrokenPipeError:
            # The client disconnected; the run does not care.
            if followed:
                state.record_event(run, "client disconnected")
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.write(json.dumps(current.to_json()) + "\n")
    return 0


def _hung_up(output: IO[bytes]) -> bool:
    """Whether the client disconnected, which a write would only show at the next line."""
    poll = select.poll()
    try:
        poll.register(output.fileno(), 0)
    except (OSError, ValueError):
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
