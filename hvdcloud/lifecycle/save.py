"""Before nodes are deleted that no user has asked to delete: all that they hold goes to the bucket, or they stay."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import list_runs, load_each
from hvdcloud.checkpoints.verified_files import Unverified
from hvdcloud.cluster.model import NodeState
from hvdcloud.errors import CheckpointError, NodeError
from hvdcloud.lifecycle.down import Unsafe, if_nodes_ended, refusal
from hvdcloud.lifecycle.mirror import mirror_of, unsaved_on_nodes
from hvdcloud.remote.join import pin_known
from hvdcloud.remote.keys import pinned
from hvdcloud.remote.ssh import Fleet
from hvdcloud.remote.unsaved import may_hold_files

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context

ENDING_SECONDS = 180.0
"""How long agents may take to end the ranks of a run whose head is lost, and VMs that are being deleted to be gone."""
PAUSE_SECONDS = 1.0


def save_checkpoints(context: Context, cluster: Cluster, *, run: str) -> Cluster | None:
    """Wait until the bucket has every file of a lost run that the cluster's nodes hold.

    A node that has stopped and may hold more is started again where that costs nothing. What a node that is gone had
    not uploaded is lost with it.

    Args:
        run: the lost one, for the message.

    Returns:
        the cluster as it is then, which may be deleted; None: nothing of it is left.

    Raises:
        CheckpointError: a node holds, or may hold, what the bucket has not.
    """
    deadline = time.monotonic() + ENDING_SECONDS
    cluster = _started_again(context, cluster)
    with context.console.waiting(context.name, "saving what its nodes hold"):
        while True:
            unsafe = _unsafe(context, cluster)
            if not unsafe:
                return cluster
            if now := if_nodes_ended(context, cluster):
                if not now.nodes and not now.unseen:
                    return context.query()
                # A container that was killed just now may have been seen as running before.
                cluster = _started_again(context, now)
            elif time.monotonic() >= deadline or any(node.state is NodeState.FROZEN for node in cluster.nodes):
                error = refusal(unsafe, cluster, going=(), from_here=True)
                message = f"run {run} is not tried again: {error.message}"
                raise CheckpointError(message, hint=error.hint, details=error.details)
            else:
                time.sleep(PAUSE_SECONDS)


def _started_again(context: Context, cluster: Cluster) -> Cluster:
    """The cluster, with nodes that may hold more than the bucket has running again, where the provider does that."""
    if mirror_of(context, cluster) is not None:
        # Nodes with buckets of their own are started again each time that they are asked (lifecycle/mirror.py).
        return cluster
    record, bucket = context.state.record_of(cluster.id), context.bucket(cluster)
    runs = record.runs if record is not None else ()
    stopped = [
        node
        for node in cluster.nodes
        if node.state is NodeState.STOPPED and may_hold_files(node.index, cluster, bucket=bucket, started=runs)
    ]
    if not stopped:
        return _reached(context, cluster)
    with context.console.waiting(context.name, "starting stopped nodes again, to save what they hold"):
        try:
            context.provider.revive(stopped, deadline=time.monotonic() + context.provider.ready_seconds)
        except NodeError as error:
            context.console.warn(error.message)
        now = context.query()
    if now is None or now.id != cluster.id:
        return replace(cluster, nodes=())
    return _reached(context, now)


def _reached(context: Context, cluster: Cluster) -> Cluster:
    """The cluster, with sessions to where its nodes are now: those that were started again have other ports."""
    pin_known(context.state, cluster.nodes, pinned(context.state))
    context.keep(Fleet(cluster.nodes, context.state))
    return cluster


def _unsafe(context: Context, cluster: Cluster) -> Unsafe:
    """What the bucket has not, as far as the nodes that exist and their manifests tell."""
    bucket = context.bucket(cluster)
    there = {node.index for node in cluster.nodes}
    unsafe = Unsafe(on_nodes=unsaved_on_nodes(context, cluster))
    for run in list_runs(bucket, cluster.name, suffix=cluster.id):
        good, bad = load_each(bucket, cluster=cluster.name, run=run)
        unfinished = [
            Unverified(name=run, node=each.node, reason=f"node {each.node} has not finished uploading")
            for each in good
            if each.node in there and not each.complete
        ]
        damaged = [
            Unverified(name=each.name, node=each.node, is_bad=True, reason=f"what node {each.node} wrote: {each.error}")
            for each in bad
            if each.node in there
        ]
        unsafe.of_runs[run] = [*unfinished, *damaged]
    return unsafe
