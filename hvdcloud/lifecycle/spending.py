"""The runs of a cluster as they count for what it has cost, from its bucket: its nodes may be gone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.cluster.spending import RunTimes, run_times
from hvdcloud.errors import HvdcloudError
from hvdcloud.lifecycle.context import BRIEF_RETRY_SECONDS

if TYPE_CHECKING:
    from hvdcloud.cluster.cost import Cost, Meter
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.storage.base import Bucket


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRuns:
    """The runs of a cluster."""

    times: Sequence[RunTimes] = ()
    complete: bool
    """Nothing is missing."""


def runs_of(context: Context, cluster: Cluster | None, *, followed: RunTimes | None = None) -> KnownRuns:
    """The runs of a cluster, as far as the bucket tells: never an error, since nothing depends on it.

    Args:
        followed: a run that this command has followed itself; it need not be in the bucket yet.
    """
    own = {followed.run: followed} if followed is not None else {}
    if cluster is None or not cluster.billed:
        return KnownRuns(times=tuple(own.values()), complete=False)
    try:
        found = _runs_in(context.bucket(cluster, retry_seconds=BRIEF_RETRY_SECONDS), cluster, own)
    except HvdcloudError:
        # What is not known is unaccounted for.
        return KnownRuns(times=tuple(own.values()), complete=False)
    return KnownRuns(times=[each for each in found.values() if each is not None], complete=None not in found.values())


def _runs_in(bucket: Bucket, cluster: Cluster, own: dict[str, RunTimes]) -> dict[str, RunTimes | None]:
    """When each run of which there is something was, by its name; None: the bucket does not say."""
    from hvdcloud.checkpoints.manifest import list_runs
    from hvdcloud.runs import archive

    found: dict[str, RunTimes | None] = dict(own)
    for run in list_runs(bucket, cluster.name, suffix=cluster.id):
        state = archive.state(bucket, cluster.name, run)
        if state is None or state.run != run:
            found.setdefault(run, None)
        elif run not in own or state.elastic is not None:
            events = archive.events(bucket, cluster.name, run) if state.elastic is not None else ()
            found[run] = run_times(state, events)
    return found


def cost_so_far(context: Context, meter: Meter, followed: RunTimes | None) -> Cost | None:
    """What a cluster that stays has cost by the end of a run; None: nothing, or it is not known."""
    runs = runs_of(context, meter.cluster, followed=followed)
    return meter.read(runs=runs.times, all_runs=runs.complete)
