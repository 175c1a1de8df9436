"""`hvdcloud status` and `hvdcloud list`: what there is, from labels, and what it does, from the head."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError
from hvdcloud.lifecycle.run import RunResult, result_of

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """One cluster now."""

    cluster: Cluster
    whole: bool
    runs: Sequence[RunResult]
    runs_unknown: str
    """Why the runs could not be asked for; empty if they could."""
    age_seconds: float
    dollars_so_far: float
    """By the price table, for everything of it that is there."""
    nodes_gone: int
    """Preempted or deleted; what they had cost is not counted."""


def status(context: Context) -> StatusResult:
    """Look at the cluster.

    Raises:
        UsageError: there is none of this name.
    """
    cluster = context.cluster()
    if not cluster.bucket:
        # On Compute Engine only the VMs know it, and they are gone.
        cluster = replace(cluster, bucket=context.bucket_url)
    if cluster.unseen:
        context.console.warn(f"{', '.join(cluster.unseen)} did not answer; what is there is not shown")
    runs: list[RunResult] = []
    unknown = ""
    try:
        from hvdcloud.lifecycle.logs import states

        runs = [result_of(cluster.name, state) for state in states(context, cluster)]
    except HvdcloudError as error:
        unknown = error.message
    age = time.time() - cluster.created.timestamp()
    return StatusResult(
        cluster=cluster,
        whole=cluster.whole,
        runs=runs,
        runs_unknown=unknown,
        age_seconds=age,
        dollars_so_far=cluster.dollars_so_far,
        nodes_gone=max(0, cluster.expected_nodes - len(cluster.nodes)),
    )
