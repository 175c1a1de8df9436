"""`hvdcloud history`: the runs that a bucket knows, newest first; from any machine, also when their nodes are gone.

Run ids begin with their time, so that only the newest are read: one small object each, many at a time, and no log.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import FOLDER, list_runs, run_prefix, state_name
from hvdcloud.errors import CheckpointError
from hvdcloud.parallel import side_by_side
from hvdcloud.runs.state import About, RunState
from hvdcloud.storage.base import Bucket, BucketUnreachableError, ObjectMissingError

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context

"""Bytes of a run's state that are read: room for the ends of 100,000 ranks."""
_RUN_TIME = "%Y%m%d-%H%M%S"
_CLOCKS = timedelta(days=1)
"""A run that begins later than this from now is none of ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """One run."""

    cluster: str
    run: str
    began: datetime
    result: str | None
    """succeeded | failed | stopped | lost; None: it has not ended, or its end did not reach the bucket."""
    exit_code: int | None = None
    seconds: float | None = None
    dollars: float | None = None
    """What all nodes cost from its start to its end; None: not known."""
    nodes: int | None = None
    ranks: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest of each number that its log ends with."""
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryResult:
    """What a bucket knows of runs."""

    bucket: str
    runs: Sequence[PastRun]
    """Newest first."""
    more: int
    """How many older ones were not read."""


def history(context: Context, *, cluster: str | None, limit: int) -> HistoryResult:
    """The newest runs; what is damaged is left out, with a warning.

    Args:
        cluster: of clusters with this name only.

    Raises:
        HvdcloudError: the bucket cannot be read.
    """
    bucket = context.bucket()
    now = datetime.now(timezone.utc)
    with context.console.waiting("history", f"reading {bucket.url}"):
        found = run_names(bucket, cluster=cluster, warn=context.console.warn, now=now)
        read = side_by_side(lambda each: _past_run(bucket, *each), found[:limit], only_reads=True)
    runs: list[PastRun] = []
    for each in read:
        if isinstance(each, PastRun):
            runs.append(each)
        else:
            context.console.warn(f"{each.message}; it is left out")
    return HistoryResult(bucket=bucket.url, runs=runs, more=max(0, len(found) - limit))


def run_names(
    bucket: Bucket, *, cluster: str | None, warn: Callable[[str], object], now: datetime
) -> list[tuple[str, str]]:
    """Cluster and id of each run in the bucket, newest first.

    Raises:
        HvdcloudError: the bucket cannot be listed.
    """
    clusters = [cluster] if cluster else []
    for name in bucket.prefixes("") if not cluster else ():
        # Others may keep what they like in the bucket.
        with contextlib.suppress(CheckpointError):
            if name != f"{FOLDER}/":
                run_prefix(name[:-1], "run")
                clusters.append(name[:-1])
    listed = side_by_side(lambda each: [(each, run) for run in list_runs(bucket, each)], clusters, only_reads=True)
    found: list[tuple[str, str]] = []
    for name, run in (each for runs in listed for each in runs):
        at = began(run)
        if at is None or at > now + _CLOCKS:
            warn(f"{bucket.url}/{name}/{run} is no run of a time that was; it is left out")
        else:
            found.append((name, run))
    return sorted(found, key=lambda each: (each[1], each[0]), reverse=True)


def began(run: str) -> datetime | None:
    """When a run began, by its id; None: no calendar has that time."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(run.rpartition("-")[0], _RUN_TIME).replace(tzinfo=timezone.utc)
    return None


def read_state(bucket: Bucket, cluster: str, run: str) -> RunState | None:
    """The last state of a run, as far as it can be used; None: the bucket has none.

    Raises:
        CheckpointError: it is damaged, or another run's.
    """
    name = state_name(cluster, run)
    try:
        state = RunState.parse(bucket.read(name))
    except ObjectMissingError:
        return None
    if state.run != run or state.cluster not in ("", cluster):
        raise CheckpointError(
            f"{bucket.url}/{name} is not the state of run {run}", hint="hvdcloud pull fetches its files"
        )
    return state


def _usable_state(bucket: Bucket, cluster: str, run: str) -> RunState | CheckpointError | None:
    """The state as `read_state` reads it, or what is wrong with it. Raises HvdcloudError: the bucket cannot be read."""
    try:
        return read_state(bucket, cluster, run)
    except BucketUnreachableError:
        raise
    except CheckpointError as error:
        return error


def newest_states(bucket: Bucket, *, most: int) -> list[RunState]:
    """The states of the newest runs of all clusters, without those that cannot be used.

    Raises:
        HvdcloudError: the bucket cannot be read.
    """
    names = run_names(bucket, cluster=None, warn=lambda _: None, now=datetime.now(timezone.utc))[:most]
    found = side_by_side(lambda each: _usable_state(bucket, *each), names, only_reads=True)
    return [each for each in found if each is not None and not isinstance(each, CheckpointError)]


def _past_run(bucket: Bucket, cluster: str, run: str) -> PastRun | CheckpointError:
    state = _usable_state(bucket, cluster, run)
    if isinstance(state, CheckpointError):
        return state
    at = began(run)
    assert at is not None
    if state is None:
        return PastRun(cluster=cluster, run=run, began=at, result=None)
    about = About.from_json(state.about)
    seconds = state.ended - state.started if state.started is not None and state.ended is not None else None
    seconds = seconds if seconds is not None and seconds >= 0 else None
    rate = about.dollars_per_hour
    dollars = rate * seconds / 3600 if seconds is not None and rate is not None and rate >= 0 else None
    return PastRun(
        cluster=cluster,
        run=run,
        began=at,
        result=state.result or None,
        exit_code=state.exit_code,
        seconds=seconds,
        dollars=dollars,
        nodes=len(state.nodes) or None,
        ranks=state.np or None,
        metrics=state.metrics,
        command=about.command,
    )
