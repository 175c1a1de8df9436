"""What a cluster has cost, by the price table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.units import counted, dollars, seconds

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a cluster has cost since its nodes were made."""

    dollars: float
    dollars_per_hour: float
    """The rate of all nodes, when they were last seen."""
    seconds: float
    nodes: int
    earlier_dollars: float = 0.0
    """What of `dollars` the clusters of the run's earlier attempts have cost."""

    @property
    def own_dollars(self) -> float:
        """What the last cluster has cost."""
        return self.dollars - self.earlier_dollars

    @property
    def line(self) -> str:
        """`cost: $0.11 for 2 nodes, 7 min 12 s at $0.92/h`."""
        rate = f"{seconds(self.seconds)} at {dollars(self.dollars_per_hour)}/h"
        earlier = f"; {dollars(self.earlier_dollars)} of it for earlier attempts" if self.earlier_dollars else ""
        return f"cost: {dollars(self.dollars)} for {counted(self.nodes, 'node')}, {rate}{earlier}"


class Meter:
    """Counts what a cluster costs after it was last seen, as if all its nodes ran until it is gone: an upper bound."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        """Seconds since the epoch."""
        self.cluster: Cluster | None = None
        """As it was when it cost the most; None: none was seen."""
        self._at = 0.0
        self._earlier = 0.0

    def observe(self, cluster: Cluster) -> None:
        """Take the cluster as its provider has just described it.

        The view that comes to more counts: nodes end themselves when a run is done, and what a replaced node has cost
        is not in a later view.
        """
        now = self._now()
        before = dollars_at(self.cluster, self._at, until=now) if self.cluster else None
        if (dollars_at(cluster, now, until=now) or 0.0) >= (before or 0.0):
            self.cluster, self._at = cluster, now

    def close(self, *, at_least: float = 0.0) -> float | None:
        """Count no more for the cluster, which is gone: another one follows, whose cost includes this one's.

        Returns what it has cost, or `at_least` if that is more; None: nothing, or its price is not known.
        """
        cost = self.read()
        total = max(at_least, cost.own_dollars if cost is not None else 0.0)
        self._earlier += total
        self.cluster = None
        return total or None

    def read(self) -> Cost | None:
        """What it has cost until now; None if nothing is known, or it costs nothing."""
        cluster, now = self.cluster, self._now()
        spent = dollars_at(cluster, self._at, until=now) if cluster else None
        if cluster is None or spent is None or not cluster.dollars_per_hour:
            return None
        return Cost(
            dollars=spent + self._earlier,
            dollars_per_hour=cluster.dollars_per_hour,
            seconds=now - (cluster.costs_since or cluster.created).timestamp(),
            nodes=len(cluster.nodes),
            earlier_dollars=self._earlier,
        )


def dollars_at(cluster: Cluster, seen: float, *, until: float) -> float | None:
    """What a cluster that was seen at a moment will have cost at another, both in Unix time; None: not known."""
    if cluster.dollars_so_far is None or cluster.dollars_per_hour is None:
        return None
    paid_until = max(seen, cluster.paid_until.timestamp() if cluster.paid_until else 0.0)
    return cluster.dollars_so_far + cluster.dollars_per_hour * max(0.0, until - paid_until) / 3600
