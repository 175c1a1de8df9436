"""What is known of runs whose nodes are gone: log and last state, which the head put beside the checkpoints."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.model import NodeState

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.storage.base import Bucket


KEEP_SECONDS = 5.0
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A run that has ended."""

    state: dict[str, Any]
    log: bytes


def is_needed(cluster: Cluster | None) -> bool:
    """Whether there is no head to ask."""
    head = cluster.head if cluster is not None else None
    return head is None or head.state is NodeState.STOPPED


def read(context: Context, cluster: Cluster | None, run_id: str | None) -> KeptRun | None:
    """One run of the cluster, from the bucket.

    Args:
        cluster: None: it is gone altogether, and every cluster that had its name counts.
        run_id: None: the newest of which there is a log.

    Returns:
        None: the bucket has no log of it.
    """
    from hvdcloud.checkpoints.manifest import log_name
    from hvdcloud.storage.base import ObjectMissingError

    bucket = context.bucket(cluster)
    for run in reversed(_runs(context, bucket, cluster)):
        if run_id in (None, run) and (state := _state(context, bucket, run)) is not None:
            try:
                return KeptRun(state=state, log=bucket.read(log_name(context.name, run)))
            except ObjectMissingError:
                continue
    return None


def wait(context: Context, cluster: Cluster, run_id: str) -> None:
    """Wait until a run that has just ended has its log in the bucket: its nodes are about to go, and hold the only one.

    It is no checkpoint: what is not there after KEEP_SECONDS is done without.
    """
    if context.platform.lends_credentials and cluster.bucket.startswith("gs://"):
        # The credentials that these nodes had were this machine's, and are gone when the checkpoints are there.
        return
    bucket = context.bucket(cluster)
    deadline = time.monotonic() + KEEP_SECONDS
    while _state(context, bucket, run_id) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def states(context: Context, cluster: Cluster) -> list[dict[str, Any]]:
    """The last state of every run of this cluster that has ended, newest last."""
    bucket = context.bucket(cluster)
    found = (_state(context, bucket, run) for run in _runs(context, bucket, cluster))
    return [state for state in found if state is not None]


def _runs(context: Context, bucket: Bucket, cluster: Cluster | None) -> list[str]:
    from hvdcloud.checkpoints.manifest import list_runs

    return list_runs(bucket, context.name, suffix=cluster.id if cluster is not None else None)


def _state(context: Context, bucket: Bucket, run: str) -> dict[str, Any] | None:
    from hvdcloud.checkpoints.manifest import state_name
    from hvdcloud.storage.base import ObjectMissingError

    try:
        value = json.loads(bucket.read(state_name(context.name, run)))
    except (ObjectMissingError, ValueError):
        return None
    return value if isinstance(value, dict) and "run" in value else None
