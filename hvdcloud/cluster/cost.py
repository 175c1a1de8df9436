"""What a run came to in money."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.cluster.spending import NodeTimes, RunTimes, Segment, divide, merged, node_times, spent_text
from hvdcloud.units import counted, dollars, seconds, size, small_dollars

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Billed, Cluster
    from hvdcloud.cluster.record import ClusterRecord
    from hvdcloud.storage.base import Bucket

CLOUD_BUCKET = "gs://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a cluster has cost from its creation until it was gone, by the price table."""

    dollars: float
    dollars_per_hour: float
    """The rate of all nodes, when they were last seen."""
    seconds: float
    nodes: int
    per_epoch: float | None = None
    epochs: int | None = None
    """That the last run printed; None: it printed none that is recognised."""
    per_step: float | None = None
    steps: int | None = None
    bucket_bytes: int | None = None
    """What the cluster's runs hold in the bucket; None: there is no bucket that costs, or it was not read."""
    bucket_dollars_per_month: float | None = None
    spent: Sequence[Segment] = ()
    """Where the dollars of the last cluster went; empty: the provider does not say what was billed."""
    earlier_dollars: float = 0.0
    """What of `dollars` the clusters of the run's earlier attempts have cost."""

    @property
    def own_dollars(self) -> float:
        """What the last cluster has cost."""
        return self.dollars - self.earlier_dollars

    @property
    def lines(self) -> list[str]:
        """All of it, for people."""
        return [self.summary, *([f"  {spent_text(self.spent)}"] if self.spent else [])]

    @property
    def summary(self) -> str:
        """`cost: $0.11 for 2 nodes, 7 min 12 s at $0.92/h; …`, for people."""
        nodes = counted(self.nodes, "node")
        rate = dollars(self.dollars_per_hour)
        parts = [f"cost: {dollars(self.dollars)} for {nodes}, {seconds(self.seconds)} at {rate}/h"]
        if self.earlier_dollars:
            parts.append(f"{dollars(self.earlier_dollars)} of it for earlier attempts")
        for per, count, unit in ((self.per_epoch, self.epochs, "an epoch"), (self.per_step, self.steps, "a step")):
            if per is not None and count is not None:
                parts.append(f"{small_dollars(per)} {unit} ({count:,} {unit.split()[1]}{'s' if count > 1 else ''})")
        if self.bucket_bytes and self.bucket_dollars_per_month is not None:
            month = dollars(self.bucket_dollars_per_month)
            parts.append(f"checkpoints: {size(self.bucket_bytes)} in the bucket, {month} a month")
        return "; ".join(parts)


class Meter:
    """Counts what a cluster costs after it was last seen, as if all its nodes ran until it is gone: an upper bound."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        """Seconds since the epoch."""
        self._seen: Cluster | None = None
        self._billed: tuple[Billed, ...] = ()
        self._nodes: list[NodeTimes] = []
        self._at = 0.0
        self._earlier = 0.0

    def close(self, *, at_least: float = 0.0) -> float | None:
        """Count no more for the cluster, which is gone: another one follows, whose cost includes this one's.

        Returns what it has cost, or `at_least` if that is more; None: nothing, or its price is not known.
        """
        cost = self.read()
        total = max(at_least, cost.own_dollars if cost is not None else 0.0)
        self._earlier += total
        self._seen, self._billed, self._nodes = None, (), []
        return total or None

    def add_earlier(self, dollars: float) -> None:
        """Add what clusters that are gone have cost."""
        self._earlier += dollars

    def observe(self, cluster: Cluster, record: ClusterRecord | None = None) -> None:
        """The cluster as its provider has just described it, and what this machine remembers of it."""
        # Nodes end themselves when a run is done; what they all cost was seen before.
        if self._seen is None or len(cluster.nodes) >= len(self._seen.nodes):
            self._seen, self._at = cluster, self._now()
        self._billed = merged(self._billed, cluster.billed)
        self._nodes += node_times(record)

    @property
    def cluster(self) -> Cluster | None:
        """The cluster with the most nodes that were seen; None: none was."""
        return self._seen

    def read(
        self,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        bucket_bytes: int | None = None,
        bucket_dollars_per_month: float | None = None,
        runs: Sequence[RunTimes] = (),
        all_runs: bool = False,
        teardown: float | None = None,
        now: float | None = None,
    ) -> Cost | None:
        """What it has cost until now, and what was done for that; None if nothing is known, or it costs nothing.

        Args:
            runs: those that the cluster has had.
            all_runs: it has had no others.
            teardown: when its nodes began to be deleted, in seconds since the epoch; None: they were not.
            now: when it was gone; None: it is not.
        """
        cluster = self._seen
        if cluster is None or not cluster.dollars_per_hour:
            return None
        now = self._now() if now is None else now
        paid_until = max(self._at, cluster.paid_until.timestamp() if cluster.paid_until else 0.0)
        total = cluster.dollars_so_far + cluster.dollars_per_hour * max(0.0, now - paid_until) / 3600
        if self._billed:
            total = sum(part.dollars(now) for part in self._billed)
        total += self._earlier
        return Cost(
            dollars=total,
            dollars_per_hour=cluster.dollars_per_hour,
            seconds=now - (cluster.costs_since or cluster.created).timestamp(),
            nodes=len(cluster.nodes),
            per_epoch=total / epochs if epochs else None,
            epochs=epochs,
            per_step=total / steps if steps else None,
            steps=steps,
            bucket_bytes=bucket_bytes,
            bucket_dollars_per_month=bucket_dollars_per_month,
            spent=divide(self._billed, now=now, nodes=self._nodes, runs=runs, all_runs=all_runs, teardown=teardown),
            earlier_dollars=self._earlier,
        )


def bytes_kept(bucket: Bucket, *, cluster: str, runs: Sequence[str]) -> int | None:
    """The size of the runs' objects; None: the bucket costs nothing, or cannot be read."""
    from hvdcloud.checkpoints.manifest import run_prefix
    from hvdcloud.errors import HvdcloudError

    if not bucket.url.startswith(CLOUD_BUCKET):
        return None
    try:
        return sum(item.size for run in runs for item in bucket.list(run_prefix(cluster, run)))
    except HvdcloudError:
        # Every checkpoint is safe by now; without this number nothing fails.
        return None
