"""Why a cluster does not have all of its nodes, as far as its provider knows."""

from __future__ import annotations

from hvdcloud.cluster.model import Cluster, NodeState
from hvdcloud.errors import NodeError
from hvdcloud.units import counted


def not_whole(cluster: Cluster) -> NodeError:
    """The error for a command that needs every node."""
    name = cluster.name
    again = f"hvdcloud pull --name {name}, then hvdcloud down --name {name} and up again"
    stopped = bool(cluster.nodes) and all(node.state is NodeState.STOPPED for node in cluster.nodes)
    if stopped or not (cluster.nodes or cluster.unseen):
        return NodeError(
            f"all nodes of cluster {name} {'have stopped' if stopped else 'are gone'}: nodes end themselves after a "
            "run with --down-when-done, after limits.idle without a run and without an SSH session, and after "
            "limits.max_run_duration",
            hint=again,
        )
    states = ", ".join(f"{node.name} {node.state.value}" for node in cluster.nodes) or "none"
    if cluster.head is not None and cluster.head.state is NodeState.RUNNING:
        again = f"hvdcloud resize {cluster.expected_nodes} --name {name} brings the others back; else {again}"
    found = f"{counted(cluster.expected_nodes, 'node')} expected, found {states}"
    return NodeError(f"cluster {name} is not whole: {found}", hint=again)
