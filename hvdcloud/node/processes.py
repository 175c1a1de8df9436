"""The processes of a run: found by their environment, ended without leftovers.

A rank's children may leave its process group, its session or its parent; their environment still says to which run
they belong. What cleared its environment is found as a descendant, or in the session of a process of the run.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.node.paths import RUN_VARIABLE

# psutil is in the nodes' image only, and the laptop imports this file as well.
if TYPE_CHECKING:
    from psutil import Process

_PR_SET_CHILD_SUBREAPER = 36
_READY = b"ready"
_POLL_SECONDS = 0.02
GRACE_SECONDS = 2.0
"""How long a process may take to end after SIGTERM."""
KILL_SECONDS = 5.0
"""How long the kernel may take to end a killed process before it is reported as left behind."""


def own_program(*words: str) -> list[str]:
    """The command line that starts the node program with these words, as this process was started."""
    isolated = ["-I"] if sys.flags.isolated else []
    return [sys.executable, *isolated, "-m", "hvdcloud.node", *words]


def start_detached(*words: str, errors: Path, seconds: float) -> str:
    """Start the node program with these words in a session of its own, which outlives this process and its connection,
    and wait until it has called `detach`. Returns why it has not; empty if it has.

    Args:
        errors: gets what it writes to standard error.
    """
    descriptor = subprocess.DEVNULL
    # A full disk is for it to say.
    with contextlib.suppress(OSError):
        descriptor = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    process = subprocess.Popen(
        own_program(*words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=descriptor,
        start_new_session=True,
    )
    if descriptor != subprocess.DEVNULL:
        os.close(descriptor)
    assert process.stdout
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    said = os.read(process.stdout.fileno(), 4096) if ready else b"it took too long"
    if said == _READY:
        return ""
    process.kill()
    return said.decode(errors="replace") or f"it ended at once; {errors} says why"


def detach() -> None:
    """In a process that was started so: say that it works, and let go of the one that waits for that."""
    os.write(1, _READY)
    os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)


def describe_self() -> dict[str, Any]:
    """What tells this process from any other, for `described`: its id, and the second since the machine's boot at which
    it started."""
    return {"pid": os.getpid(), "started": _started(os.getpid())}


def described(description: Mapping[str, Any]) -> Process | None:
    """The process that `describe_self` described; None: it has ended, also where another process has its id by now."""
    import psutil

    try:
        process = psutil.Process(int(description.get("pid", 0)))
        return process if _started(process.pid) == description.get("started") else None
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


def _started(pid: int) -> float:
    """In seconds since the machine's boot: the 22nd field of /proc/PID/stat (proc(5)), counted from the second one, the
    program's name, which may hold any character."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return round(int(fields[19]) / os.sysconf("SC_CLK_TCK"), 2)


def find(run: str) -> list[Process]:
    """Everything that belongs to a run on this node, but for the caller and its ancestors."""
    import psutil

    # Else it returns the process that had an id before, where another one has it by now.
    psutil.process_iter.cache_clear()
    every = {each.pid: each for each in psutil.process_iter(["environ", "ppid"]) if _is_live(each)}
    spared = {1}
    ancestor = os.getpid()
    while ancestor in every:
        spared.add(ancestor)
        ancestor = every[ancestor].info["ppid"]
    found = {pid for pid, each in every.items() if (each.info["environ"] or {}).get(RUN_VARIABLE) == run} - spared
    # Sessions that a process of the run leads belong to the run whole; sshd's or a supervisor's do not.
    sessions = {pid for pid in found if _session(pid) == pid}
    found |= {pid for pid in every.keys() - spared if _session(pid) in sessions}
    while more := {pid for pid, each in every.items() if each.info["ppid"] in found} - found:
        found |= more
    return [every[pid] for pid in sorted(found - spared)]


def _is_live(process: Process) -> bool:
    """Whether it runs: one that only waits to be reaped does not, unless a thread of it is still in the kernel."""
    import psutil

    try:
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def _reads_pipe(process: Process) -> bool:
    try:
        return os.readlink(f"/proc/{process.pid}/fd/0").startswith("pipe:")
    except OSError:
        return False


def descendants(pid: int) -> list[Process]:
    """A process's children, their children and so on; none where it has ended."""
    import psutil

    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, in place of PID 1 (prctl(2))."""
    import ctypes

    # Where the kernel refuses, orphans are still found by their environment.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(seconds: float = GRACE_SECONDS) -> None:
    """End all that the caller's children have left behind. `seconds`: from SIGTERM to SIGKILL."""

    def remaining() -> list[Process]:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            # No child, so no descendant: orphans become our children.
            return []
        return [each for each in descendants(os.getpid()) if _is_live(each)]

    _end_all(remaining, seconds)


def send(processes: Iterable[Process], signal_number: int) -> None:
    """Signal each process that still exists; never another one that has its id by now."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.send_signal(signal_number)


def wait_gone(processes: Sequence[Process], *, seconds: float) -> bool:
    """Wait until none of the processes runs any more, also where its parent has not reaped it yet; False when the time
    is up first."""
    deadline = time.monotonic() + seconds
    while any(each.is_running() and _is_live(each) for each in processes):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def reap(run: str) -> list[int]:
    """End every process of a run on this node. Returns the ids of those that are still there, which only a process
    stuck inside the kernel can bring about."""
    return [each.pid for each in _end_all(lambda: find(run))]


def _end_all(remaining: Callable[[], list[Process]], seconds: float = GRACE_SECONDS) -> list[Process]:
    """SIGTERM, `seconds`, SIGKILL, until none is left. Returns those that do not end."""
    grace_ends = time.monotonic() + seconds
    deadline = grace_ends + KILL_SECONDS
    told: set[Process] = set()
    while found := remaining():
        now = time.monotonic()
        if now >= deadline:
            return found
        if now >= grace_ends:
            send(found, signal.SIGKILL)
            wait_gone(found, seconds=deadline - now)
            continue
        # What reads a pipe, as `tee` does, ends with what writes to it, which may still have something to say.
        first = [each for each in found if not _reads_pipe(each)] or found
        fresh = [each for each in first if each not in told]
        # A stopped process would sit on its SIGTERM.
        send(fresh, signal.SIGTERM)
        send(fresh, signal.SIGCONT)
        told.update(fresh)
        # In short pieces, so that what was just forked hears of it too.
        wait_gone(found, seconds=min(0.25, grace_ends - now))
    return []
