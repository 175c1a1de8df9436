"""What works on this node now: a run's supervisor and agents, by the locks that they hold."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node import processes
from hvdcloud.node.files import Lock, lock_holder
from hvdcloud.node.paths import supervisor_lock, volatile_dir

_POLL_SECONDS = 0.02


class ActiveRunError(UsageError):
    """Another run works on this node."""

    def __init__(self, active: str) -> None:
        hint = f"hvdcloud logs -f {active}, or hvdcloud stop {active}"
        super().__init__(f"run {active} is active on this cluster", hint=hint)
        self.active = active


def supervised(run: str) -> dict[str, Any] | None:
    """What the run's live supervisor wrote of itself (processes.described); None when there is none."""
    holder = lock_holder(supervisor_lock())
    return None if holder is None or holder.get("run", run) != run else holder


def active_run() -> str | None:
    """The run that has a live supervisor on this node."""
    holder = lock_holder(supervisor_lock())
    return None if holder is None else str(holder.get("run", "?"))


def live_agents() -> dict[str, dict[str, Any]]:
    """What the agents that run on this node wrote of themselves (processes.described), by run."""
    locks = {lock.stem: lock_holder(lock) for lock in sorted(volatile_dir().glob("*.agent"))}
    return {run: holder for run, holder in locks.items() if holder is not None}


def take_over(path: Path, *, what: str, **more: str) -> Lock:
    """Hold a lock from now on; the process that held it before is killed. Raises NodeError: it does not end.

    Args:
        what: that process, in words.
        more: what the lock says besides who holds it.
    """
    lock = Lock(path)
    deadline = time.monotonic() + processes.KILL_SECONDS
    while not lock.acquire({**more, **processes.describe_self()}):
        if earlier := processes.described(lock_holder(path) or {}):
            processes.send([earlier], signal.SIGKILL)
            processes.wait_gone([earlier], seconds=deadline - time.monotonic())
        else:
            time.sleep(_POLL_SECONDS)
        if time.monotonic() >= deadline:
            raise NodeError(f"{what} does not end", hint="hvdcloud down --force")
    return lock
