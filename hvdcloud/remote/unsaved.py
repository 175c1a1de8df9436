"""What nodes hold that is not in the bucket yet, once each has uploaded what it can."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.model import Cluster, NodeState
from hvdcloud.errors import HvdcloudError
from hvdcloud.runs.reports import UploadReport, plain_name
from hvdcloud.visible import says, words

if TYPE_CHECKING:
    from collections.abc import Callable

    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.remote.ssh import Fleet, Session
    from hvdcloud.storage.base import Bucket

FLUSH_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsaved:
    """One thing that would be lost with its node."""

    text: str
    run: str | None = None
    is_active: bool = False
    """The run continues."""
    is_silent: bool = False
    """The node does not answer."""


def unsaved(
    cluster: Cluster, record: ClusterRecord | None, *, bucket: Bucket, fleet: Callable[[Cluster], Fleet]
) -> list[Unsaved]:
    """What prevents the deletion of these nodes, after each has been told to upload what it still holds.

    Without a record another machine has the cluster's keys, and the manifests in the bucket tell what was finished.
    """
    if record is None:
        return []
    # No run was ever sent to a node that has not joined.
    members = tuple(node for node in cluster.nodes if record.has_joined(node.name))
    cluster = replace(cluster, nodes=members)
    found = [
        Unsaved(text=f"node {node.name} is {node.state.value} and may hold more")
        for node in members
        if node.state is not NodeState.RUNNING
        and may_hold_files(node.index, cluster, bucket=bucket, started=record.runs)
    ]
    # The sessions know the nodes as they were when the command began.
    running = {node.name for node in members if node.state is NodeState.RUNNING}

    def flush(session: Session) -> dict[str, Any]:
        return session.call("flush", timeout=FLUSH_SECONDS) if session.node.name in running else {}

    sessions = fleet(cluster)
    for session, outcome in zip(sessions.sessions, sessions.each_outcome(flush), strict=True):
        if isinstance(outcome, HvdcloudError):
            found.append(Unsaved(text=outcome.message, is_silent=True))
            continue
        node, runs = f"node {session.node.name}", outcome.get("runs", {})
        if not isinstance(runs, dict) or not all(plain_name(run) and isinstance(runs[run], dict) for run in runs):
            found.append(Unsaved(text=f"{node} does not say what it holds", is_silent=True))
            continue
        for run, report in runs.items():
            if report.get("active"):
                found.append(Unsaved(text=f"run {run} is still active", run=run, is_active=True))
            uploads = UploadReport.from_json(report)
            errors = (says(node, error) for error in uploads.errors)
            for text in (*(f"{words(file)} is not in the bucket yet" for file in uploads.pending), *errors):
                found.append(Unsaved(text=f"{run}: {text}", run=run))
    return list(dict.fromkeys(found))


def may_hold_files(index: int, cluster: Cluster, *, bucket: Bucket, started: Collection[str]) -> bool:
    """Whether a node that does not run was part of a run whose files are not all in the bucket.

    `started` has runs that the bucket does not know: a node that was lost early may not have recorded its part there.
    """
    from hvdcloud.checkpoints.manifest import list_runs, load_each
    from hvdcloud.runs import archive

    for run in {*started, *list_runs(bucket, cluster.name, suffix=cluster.id)}:
        if (ended := archive.state(bucket, cluster.name, run)) is not None and ended.ended_before_ranks:
            continue
        # One that cannot be used says nothing, like one that is missing.
        good, _ = load_each(bucket, cluster=cluster.name, run=run)
        manifests = {manifest.node: manifest for manifest in good}
        if index not in manifests or not manifests[index].complete:
            return True
    return False
