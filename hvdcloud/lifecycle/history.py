"""`hvdcloud history`: the runs that a bucket knows, newest first, also when their nodes are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import list_runs
from hvdcloud.parallel import side_by_side
from hvdcloud.runs import archive

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.storage.base import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run."""

    cluster: str
    run: str
    result: str | None = None
    """succeeded | failed | stopped | lost; None: it has not ended, or its end did not reach the bucket."""
    exit_code: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    """What all nodes cost from its start to its end; None: not known."""
    nodes: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest of each number that its log ends with."""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryResult:
    """What a bucket knows of runs."""

    bucket: str
    runs: Sequence[PastRun]


def history(context: Context, *, cluster: str | None, limit: int) -> HistoryResult:
    """The newest runs; `cluster`: of clusters with this name only. Raises HvdcloudError: the bucket cannot be read."""
    bucket = context.bucket()
    with context.console.waiting("history", f"reading {bucket.url}"):
        clusters = [cluster] if cluster else [name[:-1] for name in bucket.prefixes("")]
        listed = side_by_side(lambda each: [(run, each) for run in list_runs(bucket, each)], clusters, only_reads=True)
        # Ids begin with their time, so that only the newest are read.
        found = sorted((each for runs in listed for each in runs), reverse=True)
        runs = side_by_side(lambda each: _past_run(bucket, *each), found[:limit], only_reads=True)
    return HistoryResult(bucket=bucket.url, runs=runs)


def _past_run(bucket: Bucket, run: str, cluster: str) -> PastRun:
    """A run by its last state; one whose state is missing, damaged or another's has a name only."""
    state = archive.state(bucket, cluster, run)
    if state is None or state.run != run or state.cluster not in ("", cluster):
        return PastRun(cluster=cluster, run=run)
    about = state.about
    rate = about.dollars_per_hour
    seconds = max(0.0, state.ended - state.started) if state.started and state.ended else None
    return PastRun(
        cluster=cluster,
        run=run,
        result=state.result or None,
        exit_code=state.exit_code,
        seconds=seconds,
        dollars=rate * seconds / 3600 if seconds is not None and rate is not None and rate >= 0 else None,
        nodes=len(state.nodes) or None,
        metrics=state.metrics,
        command=about.command,
    )
