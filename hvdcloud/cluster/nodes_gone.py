"""Why a cluster does not have all of its nodes, as far as its provider knows."""

from __future__ import annotations

from collections.abc import Callable

from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.units import counted
from hvdcloud.visible import words

_MARK = "hvdcloud: "
_REASONS = ("idle for ", "deleting: ", "switching off: ", "the start failed ", "limits.max_run_duration ")
"""How the lines begin in which a node says why it ends itself (node/boot/idle.py and time_limit.py, node/run/finish.py,
gce/startup)."""


def not_whole(cluster: Cluster, *, boot_log: Callable[[Node], str]) -> NodeError:
    """The error for a command that needs every node; `boot_log` asks the provider for a node's."""
    name = cluster.name
    again = f"hvdcloud pull --name {name}, then hvdcloud down --name {name} and up again"
    if not cluster.nodes and not cluster.unseen:
        return NodeError(
            f"all nodes of cluster {name} are gone: nodes end themselves after a run with "
            "--down-when-done, after limits.idle without a run and without an SSH session, and after "
            "limits.max_run_duration",
            hint=again,
        )
    stopped = bool(cluster.nodes) and all(node.state is NodeState.STOPPED for node in cluster.nodes)
    if stopped and (reason := _reason(cluster, boot_log)):
        return NodeError(
            f"the nodes of cluster {name} have ended themselves; their log says: {words(reason)}", hint=again
        )
    states = ", ".join(f"{node.name} {node.state.value}" for node in cluster.nodes) or "none"
    if cluster.head is not None and cluster.head.state is NodeState.RUNNING:
        again = f"hvdcloud resize {cluster.expected_nodes} --name {name} brings the others back; else {again}"
    found = f"{counted(cluster.expected_nodes, 'node')} expected, found {states}"
    return NodeError(f"cluster {name} is not whole: {found}", hint=again)


def _reason(cluster: Cluster, boot_log: Callable[[Node], str]) -> str:
    """The last reason in a boot log, the head's before others'; empty if there is none."""
    for node in cluster.nodes:
        try:
            lines = boot_log(node).splitlines()
        except HvdcloudError:
            # It is only for a better message.
            continue
        for line in reversed(lines):
            # On a serial port each line says first which program it is from.
            text = line.partition(_MARK)[2].strip()
            if text.startswith(_REASONS):
                return text.removeprefix("deleting: ").removeprefix("switching off: ")
    return ""
