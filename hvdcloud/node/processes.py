"""The processes of a run: found by their environment, ended without leftovers.

A rank's children may leave its process group, its session or its parent; their environment still says to which run
they belong. What cleared its environment is found as a descendant, or in the session of a process of the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from hvdcloud.node.paths import RUN_VARIABLE

_PR_SET_CHILD_SUBREAPER = 36
GRACE_SECONDS = 2.0
"""How long a process may take to end after SIGTERM."""
KILL_SECONDS = 5.0
"""How long the kernel may take to end a killed process before it is reported as left behind."""


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int


def _stat(pid: int) -> _Process | None:
    """Parent and session of a live process; None for one that is gone or only waits to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold anything; the fields after it are fixed (proc(5)).
    fields = text.rpartition(b")")[2].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return _Process(pid, int(fields[1]), int(fields[3]))


def _marked(pid: int, marker: bytes) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return environment.startswith(marker) or b"\0" + marker in environment


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs (a zombie does not)."""
    return _stat(pid) is not None


def find(run: str) -> list[int]:
    """Process ids of everything that belongs to a run on this node, but for the caller and its ancestors."""
    marker = f"{RUN_VARIABLE}={run}\0".encode()
    every = _all()
    spared = {1}
    ancestor: int | None = os.getpid()
    while ancestor in every:
        spared.add(ancestor)
        ancestor = every[ancestor].parent
    found = {pid for pid in every if pid not in spared and _marked(pid, marker)}
    # Sessions that a process of the run leads belong to the run whole; sshd's or a supervisor's do not.
    sessions = {pid for pid in found if every[pid].session == pid}
    found |= {pid for pid, process in every.items() if process.session in sessions and pid not in spared}
    return sorted(_with_descendants(found, every) - spared)


def _all() -> dict[int, _Process]:
    every = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := _stat(int(entry))) is not None:
            every[process.pid] = process
    return every


def _with_descendants(pids: set[int], every: dict[int, _Process]) -> set[int]:
    found = set(pids)
    while more := {pid for pid, process in every.items() if process.parent in found} - found:
        found |= more
    return found


def family(pid: int) -> set[int]:
    """A process and all its descendants."""
    return _with_descendants({pid}, _all())


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in place of PID 1 (prctl(2))."""
    import ctypes

    # Where the kernel refuses, orphans are still found by their environment.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(*, grace: float = GRACE_SECONDS) -> None:
    """End all that the caller's children have left behind: SIGTERM, `grace` seconds, SIGKILL."""

    def descendants() -> list[int]:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            # No child, so no descendant: orphans become our children.
            return []
        return sorted(family(os.getpid()) - {os.getpid()})

    _end_all(descendants, grace=grace)


def send(pids: Iterable[int], signal_number: int) -> None:
    """Signal each process that still exists."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal_number)


def wait_gone(pids: Iterable[int], *, seconds: float) -> bool:
    """Wait until none of the processes runs any more; False when the time is up first."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    descriptors: list[int] = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                descriptors.append(os.pidfd_open(pid))
                poll.register(descriptors[-1], select.POLLIN)
        waiting = set(descriptors)
        while waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            for descriptor, _ in poll.poll(left * 1000):
                poll.unregister(descriptor)
                waiting.discard(descriptor)
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def reap(run: str, *, grace: float = GRACE_SECONDS) -> list[int]:
    """End every process of a run on this node: SIGTERM, `grace` seconds, SIGKILL, until none is found. Returns those
    that are still there, which only a process stuck inside the kernel can bring about."""
    return _end_all(lambda: find(run), grace=grace)


def _end_all(remaining: Callable[[], list[int]], *, grace: float) -> list[int]:
    grace_ends = time.monotonic() + grace
    deadline = grace_ends + KILL_SECONDS
    told: set[int] = set()
    while pids := remaining():
        now = time.monotonic()
        if now >= deadline:
            return pids
        if now >= grace_ends:
            send(pids, signal.SIGKILL)
            wait_gone(pids, seconds=deadline - now)
            continue
        # A stopped process would sit on its SIGTERM.
        fresh = [pid for pid in pids if pid not in told]
        send(fresh, signal.SIGTERM)
        send(fresh, signal.SIGCONT)
        told.update(fresh)
        # In short pieces, so that what was just forked hears of it too.
        wait_gone(pids, seconds=min(0.25, grace_ends - now))
    return []
