"""The policy of `run.retry`: which ends of a run are followed by another attempt, and what is left for it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from hvdcloud.units import counted, dollars, seconds

LEAST_SECONDS = 120.0
"""An attempt that could not last as long as this, with the start of its machines, is not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of several that continue each other, each on a cluster of its own."""

    run: str
    """Empty: its nodes were lost before it could start."""
    lost: bool
    """Another attempt may follow."""
    reason: str
    seconds: float
    """From its start until it had ended, with the deletion of its nodes if another one follows."""
    dollars: float | None
    """What its cluster had cost by then, at most; None: nothing, or the price is not known."""

    def ended(self, number: int) -> str:
        """`attempt 1 was lost after 12 min 03 s, $0.31 (node digits-1 …)`."""
        money = f", {dollars(self.dollars)}" if self.dollars is not None else ""
        return f"attempt {number} was lost after {seconds(self.seconds)}{money} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """What earlier attempts have left of the limits, which all attempts share."""

    ends: datetime
    """The deadline of all attempts."""
    max_dollars: float | None
    """None: there is no limit."""

    def seconds(self, now: datetime) -> float:
        """Until the deadline."""
        return max(0.0, (self.ends - now).total_seconds())


def left(attempts: Sequence[Attempt], *, ends: datetime, max_cost: float | None) -> Within:
    """What is left of `limits.max_cost`, and of the time until `ends`."""
    spent = sum(attempt.dollars or 0.0 for attempt in attempts)
    return Within(ends=ends, max_dollars=None if max_cost is None else max(0.0, max_cost - spent))


def was_lost(*, result: str, elastic: bool, nodes_lost: Collection[str]) -> bool:
    """Whether a run that has ended was lost with nodes, and may be tried again.

    A run with a failure of its own (`failed`), one that a user has stopped and one whose data could not be fetched are
    never lost. An elastic run is also called lost where something else ended it: there a node has to be missing.
    """
    return result == "lost" and bool(nodes_lost or not elastic)


def refusal(*, attempts: int, most: int, left: Within, dollars_per_hour: float, now: datetime) -> str | None:
    """Why no other attempt follows, in words; None: one does.

    Args:
        attempts: made so far.
        most: `run.retry`.
        dollars_per_hour: of the cluster that was lost; the next one may cost as much.
    """
    if attempts > most:
        return f"it was tried again {counted(most, 'time')}, which is run.retry"
    if left.seconds(now) < LEAST_SECONDS:
        return f"of limits.max_run_duration, which all attempts share, {seconds(left.seconds(now))} are left"
    if left.max_dollars is not None and left.max_dollars < dollars_per_hour * LEAST_SECONDS / 3600:
        return f"of limits.max_cost, which all attempts share, {dollars(left.max_dollars)} is left"
    return None
