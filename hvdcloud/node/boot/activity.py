"""Activity on this node, as far as it keeps the node alive: a run, data that are fetched, or an SSH connection from
outside the cluster.

The time of the last activity is in a file, because three kinds of process need it: the entrypoint, which checks for
activity; verbs that the laptop calls; and other nodes, which ask.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from hvdcloud.node import machine, paths
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.mesh import tcp
from hvdcloud.node.mesh.nodes import node_addresses
from hvdcloud.node.records import active


def mark() -> None:
    """Note that there is activity now."""
    # On a full disk the entrypoint, which checks for itself, still sees runs and connections.
    with contextlib.suppress(OSError):
        write_json(paths.activity_file(), {"seen": time.monotonic()})


def idle_seconds() -> float | None:
    """Seconds since the last activity; None on a node that has no idle limit."""
    seen = (read_json(paths.activity_file()) or {}).get("seen")
    return max(0.0, time.monotonic() - seen) if isinstance(seen, (int, float)) else None


def now(tables: Iterable[str] | None = None) -> str | None:
    """The activity at this moment, in words; None: there is none.

    Args:
        tables: files with this machine's TCP connections, in the format of /proc/net/tcp; None: the kernel's.
    """
    from hvdcloud.node.data import fetcher

    if (run := active.active_run()) is not None:
        return f"run {run}"
    if agents := active.live_agents():
        return f"the agent of run {min(agents)}"
    if fetcher.is_at_work():
        return "data sets that are fetched"
    callers = tcp.callers_on(machine.ssh_port(), tcp.read(tcp.TABLES if tables is None else tables))
    strangers = callers - set(node_addresses()) if callers else set()
    return f"an SSH connection from {min(strangers)}" if strangers else None
