"""Checkpoints of nodes that have a bucket each come home: while a run is followed, and before whatever needs them.

They are fetched over the pinned connections into this machine's folder bucket, where `pull`, `report`, `--resume` and
`down` look for them, as with nodes that share it. Nodes that have ended are started again for that, and end again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import NodeState, ObjectKind
from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.remote.join import pin_known
from hvdcloud.remote.keys import pinned
from hvdcloud.remote.mirror import Mirror
from hvdcloud.remote.ssh import Fleet, Session
from hvdcloud.remote.unsaved import FLUSH_SECONDS, Unsaved, may_hold_files, unsaved
from hvdcloud.storage.folder import FolderBucket

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster, Node
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.lifecycle.context import Context

PASS_SECONDS = 2.0
"""How often nodes are looked at while a run is followed."""
QUERY_SECONDS = 15.0
"""How often, at most, the provider is asked again for nodes that do not answer."""
POWEROFF_SECONDS = 30.0
PAUSE_SECONDS = 0.5
_ROW = "fetch"


def mirror_of(context: Context, cluster: Cluster) -> Mirror | None:
    """What fetches from the nodes' own buckets; None: they share this machine's."""
    if not context.provider.bucket_as_seen_by_nodes(cluster.bucket).per_node:
        return None
    bucket = context.bucket(cluster)
    assert isinstance(bucket, FolderBucket), "nodes have their own buckets only in place of a folder"
    return Mirror(bucket, cluster=cluster.name, cluster_id=cluster.id)


def bring_home(context: Context, cluster: Cluster) -> Sequence[HvdcloudError]:
    """Fetch what the nodes have and this machine lacks. Returns what prevented it, of each node that may have more;
    nothing where nodes share this machine's bucket.

    Raises:
        CapacityError, CheckpointError: this machine's bucket cannot be written.
    """
    mirror = mirror_of(context, cluster)
    if mirror is None:
        return []
    with awake(context, cluster) as now:
        return _bring(context, now, mirror)


def bring_from_head(context: Context, cluster: Cluster) -> None:
    """Fetch what the head has, if it runs, nodes have a bucket each, and no other process fetches."""
    mirror, head = mirror_of(context, cluster), cluster.head
    if mirror is not None and head is not None and head.state is NodeState.RUNNING:
        with mirror.alone() as alone:
            if alone:
                mirror.bring(context.fleet(cluster).head)


@contextlib.contextmanager
def awake(context: Context, cluster: Cluster) -> Iterator[Cluster]:
    """The cluster for the block, with nodes of it that have stopped and may hold more than the bucket has: they are
    started again, upload what they still can, and are stopped at its end."""
    record, bucket = context.state.record_of(cluster.id), context.bucket(cluster)
    if record is None:
        yield cluster
        return
    asleep = [
        node
        for node in cluster.nodes
        if node.state is NodeState.STOPPED
        and record.has_joined(node.name)
        and may_hold_files(node.index, cluster, bucket=bucket, started=record.runs)
    ]
    if not asleep:
        yield cluster
        return
    revived = _revive(context, asleep)
    nodes = tuple(revived.get(node.name, node) for node in cluster.nodes)
    fleet = Fleet([*revived.values()], context.state)
    try:
        for outcome in fleet.each_outcome(lambda session: session.call("flush", timeout=FLUSH_SECONDS)):
            if isinstance(outcome, HvdcloudError):
                context.console.warn(outcome.message)
        yield replace(cluster, nodes=nodes)
    finally:
        # Where this fails they are gone, or idle, and end themselves.
        fleet.each_outcome(lambda session: session.call("poweroff", timeout=POWEROFF_SECONDS))
        fleet.close()
        _wait_until_stopped(context, {*revived})


def _wait_until_stopped(context: Context, names: Collection[str]) -> None:
    """Wait for nodes that are switching off: whoever finds them running would wait for an answer from them."""
    deadline = time.monotonic() + POWEROFF_SECONDS
    with contextlib.suppress(HvdcloudError):
        while time.monotonic() < deadline and (now := context.query()) is not None:
            if not any(node.name in names and node.state is NodeState.RUNNING for node in now.nodes):
                break
            time.sleep(PAUSE_SECONDS)


def unsaved_on_nodes(context: Context, cluster: Cluster) -> list[Unsaved]:
    """What prevents the deletion of these nodes, once they have uploaded what they hold and it has come home."""
    record, mirror = context.state.record_of(cluster.id), mirror_of(context, cluster)
    if mirror is None:
        return unsaved(cluster, record, bucket=context.bucket(cluster), fleet=context.fleet)
    if record is None:
        owner = cluster.owner or "another user"
        text = f"its checkpoints are on its nodes, which only the machine of {owner} can reach"
        return [Unsaved(text=text, is_silent=True)]
    with awake(context, cluster) as now:
        fleet = Fleet(now.nodes, context.state)
        with contextlib.closing(fleet):
            found = unsaved(now, record, bucket=mirror.bucket, fleet=lambda cluster: fleet)
        found += _in_volumes(now, record, mirror)
        said = {each.text for each in found}
        for error in _bring(context, now, mirror):
            if error.message not in said:
                found.append(Unsaved(text=error.message, is_silent=True))
    return found


def _in_volumes(cluster: Cluster, record: ClusterRecord, mirror: Mirror) -> list[Unsaved]:
    """Nodes whose containers are gone, as after `docker container prune`, and that may hold more in their volumes; and
    nodes that two hosts have: what came here under their number is of one of them."""
    count = Counter(node.index for node in cluster.nodes)
    found = [
        Unsaved(text=f"node {node.name} on {node.host} is on another host too, and may hold what never came here")
        for node in cluster.nodes
        if count[node.index] > 1 and record.runs
    ]
    if not any(each.kind is ObjectKind.VOLUME for each in cluster.other_objects):
        return found
    return found + [
        Unsaved(text=f"the container of node {cluster.name}-{index} is gone, and its volume may hold more")
        for index in range(cluster.expected_nodes)
        if index not in count and may_hold_files(index, cluster, bucket=mirror.bucket, started=record.runs)
    ]


@contextlib.contextmanager
def mirroring(context: Context, cluster: Cluster) -> Iterator[None]:
    """Fetch checkpoints during the block, as they are written, and the rest of them at its end."""
    mirror = mirror_of(context, cluster)
    if mirror is None:
        yield
        return
    with contextlib.closing(_Follower(context, cluster, mirror)):
        yield
    try:
        missing = [error.message for error in _bring(context, context.find() or cluster, mirror)]
    except HvdcloudError as error:
        missing = [error.message]
    except KeyboardInterrupt:
        # The run has ended: its result is not lost for this.
        missing = ["interrupted"]
    for why in missing:
        pull = f"hvdcloud pull --name {cluster.name}"
        context.console.warn(f"not every checkpoint is on this machine: {why}; {pull} fetches the rest")


def send_for_resume(context: Context, cluster: Cluster, run: str, *, to: Sequence[Node] | None = None) -> None:
    """Give nodes what they lack to continue from a run, where they have a bucket each; `to`: these only, else all.

    Raises:
        NodeError: one cannot be reached.
        CheckpointError: something of the run cannot be read.
    """
    mirror = mirror_of(context, cluster)
    if mirror is None:
        return
    with context.console.steps() as steps, contextlib.closing(Fleet(to or cluster.nodes, context.state)) as fleet:
        steps.update("run", f"sending checkpoints of run {run}")
        fleet.each(lambda session: mirror.send(session, run))


def _bring(context: Context, cluster: Cluster, mirror: Mirror) -> list[HvdcloudError]:
    """Fetch from every node that runs, or may have more than this machine. Raises as `bring_home`."""
    record = context.state.record_of(cluster.id)
    if record is None:
        return [context.not_from_here(cluster)]

    def matters(node: Node) -> bool:
        running = node.state is NodeState.RUNNING
        return running or may_hold_files(node.index, cluster, bucket=mirror.bucket, started=record.runs)

    nodes = [node for node in cluster.nodes if record.has_joined(node.name) and matters(node)]
    with context.console.steps() as steps, contextlib.closing(Fleet(nodes, context.state)) as fleet:

        def show(text: str) -> None:
            steps.update(_ROW, text, if_slow=True)

        with mirror.alone(wait=lambda: show("another hvdcloud is fetching checkpoints")):
            show("fetching checkpoints")
            outcomes = fleet.each_outcome(mirror.bring)
            failed = [each for each in outcomes if isinstance(each, HvdcloudError)]
        steps.drop(_ROW)
    return failed


def _revive(context: Context, nodes: Sequence[Node]) -> dict[str, Node]:
    """Start the nodes again; returns those that run, by name. A warning says what prevents it."""
    deadline = time.monotonic() + context.provider.ready_seconds
    try:
        with context.console.waiting(context.name, "starting nodes again, which hold checkpoints"):
            revived = {node.name: node for node in context.provider.revive(nodes, deadline=deadline)}
            now = context.provider.cluster(context.name)
    except HvdcloudError as error:
        context.console.warn(f"{error.message}; its checkpoints come when it runs again")
        return {}
    # Only a key that was pinned when the node came up is trusted; its address may be another one now.
    known = [revived.get(node.name, node) for node in (now.nodes if now is not None else ())]
    pin_known(context.state, known, pinned(context.state))
    return revived


class _Follower:
    """Fetches from the nodes again and again, in its own thread. What prevents it is said at the end of the run."""

    def __init__(self, context: Context, cluster: Cluster, mirror: Mirror) -> None:
        self._context, self._cluster, self._mirror = context, cluster, mirror
        self._fleet = Fleet(cluster.nodes, context.state)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="fetch checkpoints", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End; what has arrived of an object is kept."""
        self._ending.set()
        # Ends the calls that still wait.
        self._fleet.close()
        self._thread.join()

    def _work(self) -> None:
        query_at = 0.0
        while not self._ending.wait(PASS_SECONDS):
            try:
                with self._mirror.alone() as alone:
                    outcomes = self._fleet.each_outcome(self._bring) if alone else []
                if any(isinstance(each, HvdcloudError) for each in outcomes) and time.monotonic() >= query_at:
                    query_at = time.monotonic() + QUERY_SECONDS
                    self._renew()
            except HvdcloudError:
                # A full disk, or a provider that does not answer: the end of the run tries once more, and says so.
                continue

    def _bring(self, session: Session) -> int:
        if self._ending.is_set():
            raise NodeError("the run is no longer followed", hint="hvdcloud pull")
        return self._mirror.bring(session)

    def _renew(self) -> None:
        """Nodes of an elastic run come and go."""
        now = self._context.query()
        if now is not None and [node.id for node in now.nodes] != [node.id for node in self._cluster.nodes]:
            self._fleet.close()
            self._cluster, self._fleet = now, Fleet(now.nodes, self._context.state)
