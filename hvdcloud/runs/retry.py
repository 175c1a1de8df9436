"""The policy of `run.retry`: which ends of a run are followed by another attempt, and what is left for it. Pure.

All attempts of a run share `limits.max_cost` and one deadline. What the journal has of them is enough for a later
command to continue with the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from hvdcloud.json_values import mappings
from hvdcloud.runs.reports import Name, instant, number, plain_name, read_fields, whole
from hvdcloud.units import counted, dollars, seconds

BEGUN, ENDED = "retry", "retry-end"
"""Events of the journal: another attempt is about to be prepared; none will be."""
STARTED = "run"
"""The event of a run that starts: with it, the next attempt has begun."""
LEAST_SECONDS = 120.0
"""An attempt that could not last as long as this, with the start of its machines, is not begun."""


class Cause(str, Enum):
    """What ended an attempt that may be followed by another one."""

    PREEMPTED = "preempted"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One run of several that continue each other, each on a cluster of its own."""

    run: Name
    """Empty: its nodes were lost before it could start."""
    cluster_id: Name
    result: str
    """succeeded | failed | stopped | lost"""
    cause: str | None = None
    """What it was lost by; None: it was not lost."""
    reason: str = ""
    seconds: float = 0.0
    """From its start until it had ended, with the deletion of its nodes if another one follows."""
    dollars: float | None = None
    """What its cluster had cost by then, at most; None: nothing, or the price is not known."""
    resumed_from: str | None = None
    """The run whose checkpoints it began with."""

    def ended(self, number: int) -> str:
        """`attempt 1 was preempted after 12 min 03 s, $0.31 (node digits-1 …)`."""
        how = "was preempted" if self.cause == Cause.PREEMPTED.value else "was lost"
        money = f", {dollars(self.dollars)}" if self.dollars is not None else ""
        return f"attempt {number} {how} after {seconds(self.seconds)}{money} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What earlier attempts have left for the next ones."""

    seconds: float
    dollars: float | None
    """None: there is no limit."""

    @property
    def text(self) -> str:
        """`$1.69 and 11 h 48 min left`."""
        money = "" if self.dollars is None else f"{dollars(self.dollars)} and "
        return f"{money}{seconds(self.seconds)} left"


def left(attempts: Sequence[Attempt], *, ends: float, max_cost: float | None, now: float) -> Left:
    """What is left of `limits.max_cost` in dollars, and of the time until `ends`; times in seconds since the epoch."""
    spent = sum(attempt.dollars or 0.0 for attempt in attempts)
    return Left(seconds=max(0.0, ends - now), dollars=None if max_cost is None else max(0.0, max_cost - spent))


def cause_of(
    *, result: str, elastic: bool, nodes_lost: Collection[str], nodes_preempted: Collection[str]
) -> Cause | None:
    """What a run that has ended was lost by; None: it was not lost with a node, and is not tried again.

    A run with a failure of its own (`failed`), one that a user has stopped and one whose data could not be fetched are
    never lost. An elastic run is also called lost where something else ended it: there a node has to be missing.
    """
    if result != "lost" or (elastic and not nodes_lost):
        return None
    gone = set(nodes_lost) or set(nodes_preempted)
    return Cause.PREEMPTED if gone and gone <= set(nodes_preempted) else Cause.LOST


def refusal(
    *,
    attempts: int,
    most: int,
    left: Left,
    dollars_per_hour: float,
) -> str | None:
    """Why no other attempt follows, in words; None: one does.

    Args:
        attempts: made so far.
        most: `run.retry`.
        dollars_per_hour: of the cluster that was lost; the next one may cost as much.
    """
    if attempts > most:
        return f"it was tried again {counted(most, 'time')}, which is run.retry"
    if left.seconds < LEAST_SECONDS:
        return f"of limits.max_run_duration, which all attempts share, {seconds(left.seconds)} are left"
    if left.dollars is not None and left.dollars < dollars_per_hour * LEAST_SECONDS / 3600:
        return f"of limits.max_cost, which all attempts share, {dollars(left.dollars)} is left"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A run that is about to be tried again, as the journal has it."""

    attempts: tuple[Attempt, ...]
    """All so far; the last one was lost."""
    ends: float
    """The deadline of all attempts, in seconds since the epoch."""
    command: tuple[str, ...] = ()
    """What every rank runs, as the command line had it; empty: `run.command`."""
    ranks: int | None = None
    resume: str | None = None
    """The run that the first attempt continued from."""

    def to_json(self) -> dict[str, Any]:
        """The fields of the journal's entry."""
        return asdict(self)

    @property
    def lost(self) -> Attempt:
        """The attempt that ended last."""
        return self.attempts[-1]

    @property
    def sources(self) -> list[str]:
        """The runs that the next attempt may resume from, the best first."""
        runs = [attempt.run for attempt in reversed(self.attempts)]
        return [run for run in (*runs, self.resume) if run]

    @property
    def clusters(self) -> set[str]:
        """The ids of the attempts' clusters: nothing of them may be left when the next one is made."""
        return {attempt.cluster_id for attempt in self.attempts}


def pending(entries: Sequence[Mapping[str, Any]], *, now: float) -> Pending | None:
    """The attempt that a killed command has left to be made, from the journal's entries; None: there is none.

    Args:
        now: seconds since the epoch; nothing is continued after its deadline.
    """
    found: Pending | None = None
    for entry in entries:
        if entry.get("event") == BEGUN:
            found = _read(entry)
        elif entry.get("event") in (STARTED, ENDED):
            found = None
    return found if found is not None and found.ends - now >= LEAST_SECONDS else None


def _read(entry: Mapping[str, Any]) -> Pending | None:
    """None: nothing that can be continued."""
    attempts = tuple(
        read_fields(
            Attempt,
            each,
            result=str(each.get("result") or "lost"),
            cause=str(each["cause"]) if each.get("cause") else None,
            seconds=number(each.get("seconds")) or 0.0,
            resumed_from=plain_name(each.get("resumed_from")) or None,
        )
        for each in mappings(entry.get("attempts"))
    )
    ends, command = instant(entry.get("ends")), entry.get("command")
    if not attempts or ends is None:
        return None
    return Pending(
        attempts=attempts,
        ends=ends,
        command=tuple(map(str, command)) if isinstance(command, list) else (),
        ranks=whole(entry.get("ranks")),
        resume=plain_name(entry.get("resume")) or None,
    )
