"""`hvdcloud down`: everything with the cluster's labels is deleted, once its checkpoints are safe on this disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import list_runs
from hvdcloud.checkpoints.verified_files import VerifiedFiles, unverified
from hvdcloud.cluster.cost import Meter
from hvdcloud.cluster.model import Cluster, NodeState, ObjectKind
from hvdcloud.errors import CheckpointError, HvdcloudError, first_of
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.context import node_progress
from hvdcloud.lifecycle.logs import wait_for_record
from hvdcloud.lifecycle.pull import PullResult, pull_runs
from hvdcloud.lifecycle.ssh_nodes.homecoming import bring_home, mirror_of, unsaved_on_nodes
from hvdcloud.providers.base import NodeProgress
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.checkpoints.verified_files import Unverified
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.remote.unsaved import Unsaved
    from hvdcloud.runs.state import RunState

NAMED_LINES = 10
SWITCH_OFF_SECONDS = 15.0
"""How long a node may take from the end of its sshd to that of its container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownResult:
    """What was deleted; listing again found nothing left."""

    cluster: str
    deleted: Sequence[str]
    nothing_to_do: bool
    seconds: float
    dollars: float | None = None
    """What was deleted had cost, by the price table; None: nothing, or it is not known."""
    unseen: Sequence[str] = ()
    """Places that did not answer: every node was found on others, but they may have the rest of a replaced one."""


def down(
    context: Context,
    *,
    force: bool = False,
    checked: Sequence[str] = (),
    on_interrupt: Callable[[], object] = lambda: None,
) -> DownResult:
    """Delete the cluster.

    Args:
        force: also while checkpoints are not verified on this disk.
        checked: runs that the caller itself has just seen end completely on every node, so that nodes need not be
            asked again; the disk is checked all the same.
        on_interrupt: called, in a thread, where Ctrl-C comes while it is deleted.

    Raises:
        CheckpointError: something would be lost; nothing was deleted.
        TeardownError: something could not be deleted and may still cost money.
    """
    started = time.monotonic()
    with context.state.lock("down", required=False):
        killed = context.state.journal.cut_off_create()
        with context.console.waiting(context.name, "looking for the cluster"):
            found = context.query()
        cluster = found = found or context.late_arrival(killed)
        if cluster is not None and not force:
            with context.console.waiting(context.name, "checking that every checkpoint is on this disk"):
                _refuse_if_unsafe(context, cluster, checked)
        meter = Meter()
        if cluster is not None:
            meter.observe(cluster)
        deleted = []
        while found is not None:
            deleted += _delete(context, found, on_interrupt=on_interrupt)
            found = context.late_arrival(killed)
        context.state.forget()
    cost = meter.read()
    return DownResult(
        cluster=context.name,
        deleted=deleted,
        nothing_to_do=cluster is None,
        seconds=time.monotonic() - started,
        dollars=cost.dollars if cost else None,
        unseen=cluster.unseen if cluster is not None else (),
    )


def pull_and_down(
    context: Context,
    cluster: Cluster | None,
    *,
    last: str = "",
    checked: Sequence[str] = (),
    on_interrupt: Callable[[], object] = lambda: None,
) -> tuple[PullResult, DownResult]:
    """Pull the checkpoints of a cluster's runs, `last` as the last, then delete it, unless one would be lost.

    Args:
        checked, on_interrupt: as for `down`.

    Raises:
        CheckpointError: something could not be saved; the nodes stay.
        TeardownError: something could not be deleted.
    """
    if cluster is not None:
        # What prevents it, `down` says after the rest has been pulled.
        bring_home(context, cluster)
    bucket = context.bucket(cluster)
    runs = [] if cluster is None else list_runs(bucket, context.name, suffix=cluster.id)
    runs = [*(run_id for run_id in runs if run_id != last), *([last] if last else [])]
    pulled = pull_runs(context, bucket=bucket, runs=runs)
    if cluster is not None and cluster.head is not None and last:
        wait_for_record(context, cluster, last)
    return pulled, down(context, checked=checked, on_interrupt=on_interrupt)


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


def _delete(context: Context, cluster: Cluster, *, on_interrupt: Callable[[], object]) -> list[str]:
    """Delete everything with the cluster's labels, whatever it holds; returns what was deleted."""
    deleted: list[str] = []

    def tell() -> None:
        on_interrupt()
        steps.update(cluster.name, "deleting; Ctrl-C is ignored until nothing is left")

    with context.console.steps() as steps, uninterrupted(tell):
        _note(context, "down", cluster.id)
        steps.update(cluster.name, "deleting", if_slow=True)
        show = node_progress(steps)

        def on_progress(progress: NodeProgress) -> None:
            deleted.append(progress.object)
            show(progress)

        leftovers = context.provider.destroy(cluster.name, on_progress=on_progress)
    if leftovers:
        raise context.not_deleted(leftovers, again="hvdcloud down")
    _note(context, "down-done", cluster.id)
    return deleted


def _note(context: Context, event: str, cluster_id: str) -> None:
    """Write into the journal, if that is possible: a full disk is not a reason to let machines cost money."""
    try:
        context.state.journal.record(event, cluster_id=cluster_id)
    except HvdcloudError as error:
        context.console.warn(f"{error.message}; deleting all the same")


def _refuse_if_unsafe(context: Context, cluster: Cluster, checked: Sequence[str]) -> None:
    # Another user's list of verified files must not decide that nothing is lost.
    context.state.check()
    record = context.state.record_of(cluster.id)
    if _never_ran(context, cluster, record):
        return
    bucket = context.bucket(cluster)

    def unpulled(run: str) -> list[Unverified]:
        verified_files = VerifiedFiles(context.state.verified_files)
        return unverified(bucket, cluster=cluster.name, run=run, verified_files=verified_files)

    home = mirror_of(context, cluster) is None
    kept = not home and any(each.kind is ObjectKind.VOLUME for each in cluster.other_objects)
    if not cluster.nodes and not cluster.unseen and not kept:
        # Its nodes have deleted themselves or were preempted; what is left holds no files, so nothing can be lost.
        for run in filter(unpulled, list_runs(bucket, cluster.name, suffix=cluster.id)):
            context.console.warn(
                f"checkpoints of run {run} are in {bucket.url} and not on this disk; hvdcloud pull {run} "
                f"--name {cluster.name} fetches them, also after this"
            )
        return
    lost = record.lost_predecessors() if record is not None else set()
    on_nodes: Sequence[Unsaved] = ()
    # Where nodes have a bucket each, that a run is complete there does not say that it has come home.
    if not (home and checked) or not set(checked) >= set(list_runs(bucket, cluster.name, suffix=cluster.id)):
        on_nodes = unsaved_on_nodes(context, cluster)
    # What a node that is gone had not uploaded is lost with it: to wait for that would keep the others forever. None is
    # gone where a place that did not answer may hold it. Nothing is lost with a node that never was, whose manifest
    # another one wrote.
    there = {None, *(node.index for node in cluster.nodes)}
    missing = [
        item
        for run in list_runs(bucket, cluster.name, suffix=cluster.id)
        for item in unpulled(run)
        if (cluster.unseen or item.node in there) and (item.node, run) not in lost
    ]
    if (on_nodes or missing) and (now := _ended_meanwhile(context, cluster, on_nodes)):
        # Nodes end themselves at any time, also while they are asked.
        _refuse_if_unsafe(context, now, checked)
    elif on_nodes or missing:
        going = [run.run for run in _runs(context, cluster) or () if not run.done]
        raise refusal(on_nodes, missing, cluster, going=going, from_here=record is not None)


def _never_ran(context: Context, cluster: Cluster, record: ClusterRecord | None) -> bool:
    """Whether no run was ever started on it, so that it holds nothing; its bucket need not be opened for that.

    Runs are started from the machine with its keys, and its head knows them all.
    """
    if record is None:
        return context.state.journal.unfinished_up(cluster.id)
    if record.runs or cluster.unseen:
        return False
    return not cluster.nodes or (not cluster.is_headless and _runs(context, cluster) == [])


def _runs(context: Context, cluster: Cluster) -> list[RunState] | None:
    """The runs that its head knows; None: it does not say."""
    head = cluster.head
    if head is None or head.state is not NodeState.RUNNING:
        return None
    try:
        return context.run_states(cluster)
    except HvdcloudError:
        # What is not known is taken for unsafe.
        return None


def refusal(
    on_nodes: Sequence[Unsaved],
    missing: Sequence[Unverified],
    cluster: Cluster,
    *,
    going: Sequence[str],
    from_here: bool,
) -> CheckpointError:
    """Why `down` deletes nothing, what comes first in the message, and the command that helps.

    Args:
        on_nodes: what would be lost with the nodes.
        missing: what is not verified on this disk.
        going: runs that have not ended.
        from_here: this machine made the cluster, and can reach its nodes.
    """
    name = f" --name {cluster.name}"
    lines = [f"run {run} is still going" for run in going]
    lines += [each.text for each in on_nodes if each.run not in going]
    lines += [f"run {each.run}: {each.reason}" for each in missing if each.node is not None and each.run not in going]
    files = [each for each in missing if each.node is None]
    if going:
        hint = f"hvdcloud stop{name} ends it"
    elif files:
        hint = f"hvdcloud pull{name}, then hvdcloud down{name}" + (" --force, which gives up the rest" if lines else "")
    elif not from_here:
        hint = f"hvdcloud stop on the machine of {cluster.owner} ends its run; hvdcloud down{name} --force gives it up"
    else:
        hint = f"hvdcloud down{name} tries again; with --force it gives up what is not on this disk"
    if files:
        lines.append(f"{counted(len(files), 'file')} not verified on this disk")
        lines += [f"{each.run}/{each.name}: {each.reason}" for each in files]
    headline, *others = lines
    if len(others) > NAMED_LINES:
        others[NAMED_LINES:] = [f"and {len(others) - NAMED_LINES} more"]
    return CheckpointError(f"{cluster.name} is not deleted: {headline}", hint=hint, details="\n".join(others))


def _ended_meanwhile(context: Context, cluster: Cluster, on_nodes: Sequence[Unsaved]) -> Cluster | None:
    """The cluster as it is now, if nodes have ended since it was queried and everything left was seen. A node with a
    bucket of its own that does not answer may just be switching itself off: that is waited for."""
    silent = mirror_of(context, cluster) is not None and any(each.is_silent for each in on_nodes)
    deadline = time.monotonic() + (SWITCH_OFF_SECONDS if silent and _running(cluster) else 0.0)
    while True:
        now = context.query()
        if now is None:
            return replace(cluster, nodes=(), unseen=())
        if now.id == cluster.id and not now.unseen and _running(now) < _running(cluster):
            return now
        if time.monotonic() >= deadline:
            return None
        time.sleep(1.0)


def _running(cluster: Cluster) -> set[str]:
    return {node.name for node in cluster.nodes if node.state is NodeState.RUNNING}
