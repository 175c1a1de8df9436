"""`hvdcloud down`: everything with the cluster's labels is deleted, once its checkpoints are safe on this disk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud.cluster.cost import Meter
from hvdcloud.cluster.model import Cluster, NodeState, leftover_table
from hvdcloud.errors import CheckpointError, HvdcloudError, TeardownError, first_of
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.context import node_progress
from hvdcloud.providers.base import NodeProgress
from hvdcloud.remote.unsaved import unsaved
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context

CUT_OFF_SECONDS = 60.0
"""After this long the last request of an `up` that was killed has no further effect."""
LATE_SECONDS, LATE_PAUSE_SECONDS = 3.0, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class DownResult:
    """What was deleted; listing again found nothing left."""

    cluster: str
    deleted: Sequence[str]
    nothing_to_do: bool
    seconds: float
    dollars: float | None = None
    """What the cluster had cost, by the price table; None: nothing, or it is not known."""
    nodes_gone: int = 0
    """Nodes that were gone before, which are not counted."""


def down(context: Context, *, force: bool = False, checked: Sequence[str] = ()) -> DownResult:
    """Delete the cluster.

    Args:
        force: also while checkpoints are not verified on this disk.
        checked: runs that the caller itself has just seen end completely on every node, so that nodes need not be
            asked again; the disk is checked all the same.

    Raises:
        CheckpointError: something would be lost; nothing was deleted.
        TeardownError: something could not be deleted and may still cost money.
    """
    started = time.monotonic()
    with context.state.lock("down", required=False):
        cut_off = context.state.journal.cut_off_create(seconds=CUT_OFF_SECONDS)
        late = time.monotonic() + LATE_SECONDS
        cluster = found = context.query() or _late_arrival(context, cut_off, until=late)
        if cluster is not None and not force:
            _refuse_if_unsafe(context, cluster, checked)
        meter = Meter()
        if cluster is not None:
            meter.observe(cluster)
        deleted = []
        while found is not None:
            deleted += _delete(context, found)
            found = _late_arrival(context, cut_off, until=late)
        context.state.forget()
    cost = meter.read()
    return DownResult(
        cluster=context.name,
        deleted=deleted,
        nothing_to_do=cluster is None,
        seconds=time.monotonic() - started,
        dollars=cost.dollars if cost else None,
        nodes_gone=max(0, cluster.expected_nodes - len(cluster.nodes)) if cluster else 0,
    )


def down_all(context: Context, *, force: bool = False) -> list[DownResult]:
    """Delete every cluster of the provider, of all users; one that is refused does not keep the others.

    Raises:
        HvdcloudError: of the first cluster that was not deleted; its details name the others.
    """
    results: list[DownResult] = []
    errors: list[HvdcloudError] = []
    listing = context.provider.list()
    for cluster in listing.clusters:
        try:
            results.append(down(context.of(cluster.name), force=force))
        except HvdcloudError as error:
            errors.append(error)
    if listing.unseen:
        errors.append(listing.unseen_error())
    if errors:
        raise first_of(errors)
    return results


def _delete(context: Context, cluster: Cluster) -> list[str]:
    deleted: list[str] = []
    with uninterrupted(), context.console.steps() as steps:
        _note(context, "down", cluster.id)
        show = node_progress(steps)

        def on_progress(progress: NodeProgress) -> None:
            deleted.append(progress.object)
            show(progress)

        leftovers = context.provider.destroy(cluster.name, on_progress=on_progress)
    if leftovers:
        raise TeardownError(
            f"{counted(len(leftovers), 'object')} of {cluster.name} could not be deleted and may STILL COST MONEY",
            hint=f"hvdcloud down --name {cluster.name} tries again; by hand: {leftovers[0].delete_with}",
            details=leftover_table(leftovers),
        )
    _note(context, "down-done", cluster.id)
    return deleted


def _late_arrival(context: Context, cut_off: str | None, *, until: float) -> Cluster | None:
    """The cluster with the id `cut_off`, if what its killed `up` had asked for appears a moment later."""
    if cut_off is None:
        return None
    while time.monotonic() < until:
        found = context.provider.cluster(context.name)
        if found is not None and found.id == cut_off:
            return found
        time.sleep(LATE_PAUSE_SECONDS)
    _note(context, "down-done", cut_off)
    return None


def _note(context: Context, event: str, cluster_id: str) -> None:
    """Write into the journal, if that is possible: a full disk is not a reason to let machines cost money."""
    try:
        context.state.journal.record(event, cluster_id=cluster_id)
    except HvdcloudError as error:
        context.console.warn(f"{error.message}; deleting all the same")


def _refuse_if_unsafe(context: Context, cluster: Cluster, checked: Sequence[str]) -> None:
    from hvdcloud.checkpoints.manifest import list_runs, manifest_name
    from hvdcloud.checkpoints.verified_files import Unverified, VerifiedFiles, unverified

    bucket = context.bucket(cluster)

    def unpulled(run: str) -> list[Unverified]:
        verified_files = VerifiedFiles(context.state.verified_files)
        return unverified(bucket, cluster=cluster.name, run=run, verified_files=verified_files)

    if not cluster.nodes and not cluster.unseen:
        # Its nodes have deleted themselves or were preempted; what is left holds no files, so nothing can be lost.
        for run in filter(unpulled, list_runs(bucket, cluster.name, suffix=cluster.id)):
            context.console.warn(
                f"checkpoints of run {run} are in {bucket.url} and not on this disk; hvdcloud pull {run} "
                f"--name {cluster.name} fetches them, also after this"
            )
        return
    record = context.state.record_of(cluster.id)
    gone, missing = _gone(cluster), record.lost_predecessors() if record is not None else set()
    unsafe: list[str] = []
    if not checked or not set(checked) >= set(list_runs(bucket, cluster.name, suffix=cluster.id)):
        unsafe += (each.text for each in unsaved(cluster, record, bucket=bucket, fleet=context.fleet))
    for run in list_runs(bucket, cluster.name, suffix=cluster.id):
        # What a node that is gone had not uploaded is lost with it: to wait for that would keep the others forever.
        lost = {manifest_name(cluster.name, run, index) for index in gone}
        lost |= {manifest_name(cluster.name, run, index) for index, earlier in missing if earlier == run}
        unsafe += [f"{run}/{item.name}: {item.reason}" for item in unpulled(run) if item.name not in lost]
    if unsafe and (now := _if_nodes_ended(context, cluster)):
        # Nodes end themselves at any time, also while they are asked.
        _refuse_if_unsafe(context, now, checked)
    elif unsafe:
        raise CheckpointError(
            f"{cluster.name} is not deleted: {len(unsafe)} thing(s) would be lost",
            hint=f"hvdcloud pull --name {cluster.name}, then down again; hvdcloud down --force deletes all the same",
            details="\n".join([*unsafe[:20], *([f"and {len(unsafe) - 20} more"] if len(unsafe) > 20 else [])]),
        )


def _if_nodes_ended(context: Context, cluster: Cluster) -> Cluster | None:
    """The cluster as it is now, if nodes have ended since it was queried and everything left was seen."""
    now = context.query()
    if now is None:
        return replace(cluster, nodes=(), unseen=())
    return now if now.id == cluster.id and not now.unseen and _running(now) < _running(cluster) else None


def _running(cluster: Cluster) -> set[str]:
    return {node.name for node in cluster.nodes if node.state is NodeState.RUNNING}


def _gone(cluster: Cluster) -> set[int]:
    """Nodes that were preempted or deleted; none where a place that did not answer may hold one."""
    return set() if cluster.unseen else set(range(cluster.expected_nodes)) - {node.index for node in cluster.nodes}
