"""`hvdcloud resize N`: adds and removes nodes, during an elastic run or between runs; missing ones come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import list_runs
from hvdcloud.cluster.confirm_cost import Consent
from hvdcloud.cluster.confirm_hosts import confirm_hosts
from hvdcloud.cluster.model import Cluster, ClusterSpec, Node, NodeState
from hvdcloud.errors import CheckpointError, InterruptedByUserError, NameTakenError, NodeError, UsageError
from hvdcloud.interrupts import interrupted_once, uninterrupted
from hvdcloud.lifecycle.context import node_progress
from hvdcloud.lifecycle.ssh_nodes.homecoming import bring_home, mirror_of, send_for_resume, unsaved_on_nodes
from hvdcloud.providers.base import OnProgress
from hvdcloud.remote.join import join, spec_of
from hvdcloud.runs.state import RunState
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.lifecycle.context import Context

DISMISS_SECONDS = 620.0
"""The head itself gives up after 600."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeResult:
    """What has changed."""

    cluster: str
    nodes: int
    made: Sequence[str]
    """Nodes that are new, or back."""
    removed: Sequence[str]
    run: str | None
    """The elastic run that continues with them."""
    seconds: float


def resize(context: Context, nodes: int, *, confirmed: bool = False) -> ResizeResult:
    """Make the cluster `nodes` nodes; those that are missing or stopped are replaced.

    Args:
        confirmed: as for `up`.

    Raises:
        UsageError: there is no such cluster, a run prevents it, or what it costs was not agreed to.
        CheckpointError: something would be lost; nothing was changed.
        CapacityError, ImageError, NodeError: new nodes could not be made; the cluster is as it was.
        TeardownError: something could not be deleted.
        InterruptedByUserError: Ctrl-C; what was made is deleted again. Or the answer to what it costs was no.
    """
    started = time.monotonic()
    consent = Consent(context.console, ask_above=context.config.limits.ask_above, given=confirmed)
    confirm_hosts(context.config, console=context.console, given=confirmed)
    with context.state.lock("resize"):
        cluster = context.cluster()
        record = context.current_record(cluster)
        make, remove = plan_change(cluster, record, nodes)
        run: RunState | None = None
        if make or remove or cluster.expected_nodes != nodes:
            run = next((state for state in context.run_states(cluster) if not state.done), None)
            _check_run(run, nodes, cluster)
            if run is None:
                stopped = [node for node in cluster.nodes if node.index in make and node.state is NodeState.STOPPED]
                refuse_if_unsaved(context, cluster, stopped)
            if make:
                _grow(context, cluster, make, nodes, run=run, consent=consent)
            _shrink(context, cluster, remove, nodes, run=run)
        context.provider.set_size(cluster.name, nodes)
    return ResizeResult(
        cluster=cluster.name,
        nodes=nodes,
        made=[f"{cluster.name}-{index}" for index in make],
        removed=[node.name for node in remove],
        run=run.run if run else None,
        seconds=time.monotonic() - started,
    )


def plan_change(cluster: Cluster, record: ClusterRecord, nodes: int) -> tuple[list[int], list[Node]]:
    """The indices of the nodes that `resize` has to make, and the nodes that it deletes. Pure.

    Raises:
        NodeError: the head does not run; a node is frozen or starting; a place does not answer.
    """
    name = cluster.name
    if cluster.unseen:
        raise NodeError(
            f"{', '.join(cluster.unseen)} did not answer, so it is not known which nodes {name} has",
            hint="run the command again in a minute; hvdcloud doctor shows what is down",
        )
    there = {node.index: node for node in cluster.nodes}
    head = there.get(0)
    if head is None or head.state is not NodeState.RUNNING:
        what = head.state.value if head else "gone"
        raise NodeError(
            f"the head {name}-0 is {what}; it holds what the cluster knows of its runs, and is never replaced",
            hint=f"hvdcloud pull --name {name}, then hvdcloud down --name {name} and up again",
        )
    make = []
    for index in range(nodes):
        node = there.get(index)
        # A node that never joined was left behind by a command that was killed.
        if node is None or node.state is NodeState.STOPPED or not record.has_joined(node.name):
            make.append(index)
        elif node.state is not NodeState.RUNNING:
            raise NodeError(
                f"node {node.name} is {node.state.value}: it may come back with all that it holds",
                hint=f"hvdcloud status --name {name} shows when it runs; deleted at its provider, it can be replaced",
            )
    return make, [there[index] for index in sorted(there) if index >= nodes]


def _check_run(run: RunState | None, nodes: int, cluster: Cluster) -> None:
    if run is None:
        return
    limits = run.elastic
    if limits is None:
        raise UsageError(
            f"run {run.run} is active and not elastic: it needs the "
            f"{counted(cluster.expected_nodes, 'node')} that it began with",
            hint=f"hvdcloud stop --name {cluster.name} ends it; run.elastic lets the next one run with more or fewer",
        )
    if not (limits.min or 1) <= nodes <= (limits.max or nodes):
        raise UsageError(
            f"run {run.run} takes {limits.min} to {limits.max} nodes, not {nodes}",
            hint="run.elastic says how many; what it says when a run begins holds for that run",
        )


def _grow(
    context: Context, cluster: Cluster, make: Sequence[int], nodes: int, *, run: RunState | None, consent: Consent
) -> None:
    spec = spec_of(context.state, cluster, nodes=max(nodes, cluster.expected_nodes))
    consent.confirm(context.provider.plan_growth(spec, make), before=cluster.dollars_per_hour)
    with interrupted_once(), context.console.steps() as steps:
        try:
            add_nodes(context, cluster, spec, make, run=run, on_progress=node_progress(steps))
        except KeyboardInterrupt:
            raise InterruptedByUserError(
                f"resize of {cluster.name} was interrupted; what it had made is deleted, and the other nodes are as "
                "they were",
                hint=f"hvdcloud resize {nodes} --name {cluster.name} starts again",
            ) from None


def add_nodes(
    context: Context,
    cluster: Cluster,
    spec: ClusterSpec,
    make: Sequence[int],
    *,
    run: RunState | None,
    on_progress: OnProgress,
    on_made: Callable[[], object] = lambda: None,
    on_ready: Callable[[], object] = lambda: None,
) -> None:
    """Make nodes, bring them up, join them and admit them to the active elastic run; or leave nothing of them.

    Args:
        cluster: as it is; of the nodes to make, those that stopped are replaced, and others that exist deleted first.
        spec: `nodes`: how many the cluster has afterwards.
        on_made: called when the new nodes exist and boot; from then on their deletion ends the wait for them.
        on_ready: called when that wait is over.
    """
    provider = context.provider
    names = [spec.node_name(index) for index in make]
    stay = [node for node in cluster.nodes if node.index not in make]
    half_made = [node.index for node in cluster.nodes if node.index in make and node.state is not NodeState.STOPPED]
    before = context.current_record(spec)
    # If this is killed, what it has made is known for what it is: nodes that never joined.
    context.state.update(lambda record: record.without(names))
    if half_made and (left := provider.shrink(spec.name, half_made, on_progress=on_progress)):
        raise context.not_deleted(left, again=f"hvdcloud resize {spec.nodes}")
    try:
        made = provider.grow(spec, make, on_progress=on_progress)
        on_made()
        made = provider.wait_ready(made, deadline=time.monotonic() + provider.ready_seconds, on_progress=on_progress)
        on_ready()
        running = {node.name for node in stay if node.state is NodeState.RUNNING}
        join(
            context.state,
            spec,
            [*(node for node in stay if node.state is not NodeState.STOPPED), *made],
            made=made,
            # A run continues without a node that is lost; the head has to know its new peers, and they their peers.
            needed={spec.node_name(0), *names} if run else running | set(names),
            active_run=run.run if run else None,
        )
        if run:
            _send_checkpoints(context, spec, run, made)
            slots = context.config.run.slots_per_node
            hosts = [
                {"name": node.name, "index": node.index, "slots": node.slots(slots)}
                for node in context.record(spec).nodes
                if node.name in names
            ]
            context.fleet(cluster).head.call(f"admit {run.run}", payload={"hosts": hosts})
    except NameTakenError:
        # What exists is not ours to delete, and may hold checkpoints; of what it made, `grow` leaves nothing.
        context.state.update(lambda now: replace(now, nodes=before.nodes))
        raise
    except BaseException as error:
        with uninterrupted():
            left = provider.shrink(spec.name, make)
            context.state.update(lambda now: replace(now.without(names), size=before.size))
        if left:
            why = f"{', '.join(names)} did not come up"
            raise context.not_deleted(left, again=f"hvdcloud resize {spec.nodes}", why=why) from error
        raise


def _send_checkpoints(context: Context, spec: ClusterSpec, run: RunState, made: Sequence[Node]) -> None:
    """What the others have written in this run, and what that continued from, to nodes with a bucket of their own: the
    successor of a lost node continues its manifest."""
    cluster = context.provider.cluster(spec.name)
    if cluster is None or mirror_of(context, cluster) is None:
        return
    for error in bring_home(context, cluster):
        context.console.warn(error.message)
    if run.run in list_runs(context.bucket(cluster), spec.name):
        send_for_resume(context, cluster, run.run, to=made)


def _shrink(context: Context, cluster: Cluster, remove: Sequence[Node], nodes: int, *, run: RunState | None) -> None:
    if not remove and context.record(cluster).size == nodes:
        return
    names = [node.name for node in remove]
    running = [node.name for node in remove if node.state is NodeState.RUNNING]
    if run and running:
        context.console.say(f"run {run.run} continues without {', '.join(running)}; the checkpoints there are uploaded")
        head = context.fleet(cluster).head
        head.call(f"dismiss {run.run}", payload={"nodes": running}, timeout=DISMISS_SECONDS)
    refuse_if_unsaved(context, cluster, remove, but=run.run if run else None)
    with uninterrupted(), context.console.steps() as steps:
        context.state.update(lambda record: record.without(names))
        indices = [node.index for node in remove]
        left = context.provider.shrink(cluster.name, indices, on_progress=node_progress(steps))
        if left:
            raise context.not_deleted(left, again=f"hvdcloud resize {nodes}")
        context.state.update(lambda record: replace(record, size=nodes))
        # The remaining nodes forget the pins of the others; a run does not depend on it.
        now = context.cluster()
        rest = [node for node in now.nodes if node.state is not NodeState.STOPPED]
        join(
            context.state,
            spec_of(context.state, cluster, nodes=nodes),
            rest,
            needed={node.name for node in rest if node.index == 0},
            active_run=run.run if run else None,
        )


def refuse_if_unsaved(context: Context, cluster: Cluster, nodes: Sequence[Node], *, but: str | None = None) -> None:
    """Raise CheckpointError if one of the nodes may hold what is nowhere else; `but`: a run active elsewhere."""
    if not nodes:
        return
    cluster = replace(cluster, nodes=tuple(nodes))
    context.record(cluster)
    found = unsaved_on_nodes(context, cluster)
    problems = [each.text for each in found if not each.is_active or each.run != but]
    if problems:
        raise CheckpointError(
            f"{', '.join(node.name for node in nodes)} cannot be deleted: "
            f"{counted(len(problems), 'thing')} would be lost",
            hint="fix that, then resize again; hvdcloud pull, then hvdcloud down --force gives it up",
            details="\n".join(problems[:20]),
        )
