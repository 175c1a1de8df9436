"""Activity on this node, as far as it keeps the node alive: a run, data that are fetched, or an SSH connection from
outside the cluster.

The time of the last activity is in a file, because three kinds of process need it: the entrypoint, which checks for
activity; verbs that the laptop calls; and other nodes, which ask.
"""

from __future__ import annotations

import contextlib
import time

from hvdcloud.node import machine, paths
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.mesh import nodes
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


def is_there() -> bool:
    """Whether there is activity at this moment."""
    import psutil

    from hvdcloud.node.data import fetcher

    if active.active_run() or active.live_agents() or fetcher.is_at_work():
        return True
    port = machine.ssh_port()
    callers = {
        each.raddr.ip.removeprefix("::ffff:")  # An IPv4 address, as a socket of IPv6 has it.
        for each in psutil.net_connections("tcp")
        if each.status == psutil.CONN_ESTABLISHED and each.raddr and each.laddr and each.laddr.port == port
    }
    return bool(callers - {peer.address for peer in nodes.known()})
