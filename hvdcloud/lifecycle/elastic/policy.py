"""Which lost nodes of an elastic run are replaced, and when. Pure: no clock, no network.

An attached client follows it (replace.py). It replaces what the provider calls gone or stopped: a node that is frozen,
or that the head cannot reach, may come back with all that it holds, and the head then takes it back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

PAUSE_GROWTH = 1.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long the policy waits for what, in seconds."""

    confirm: float = 1.0
    """A node has to be lost, and seen to be lost twice, for this long: many come back."""
    check: float = 3.0
    """Between two questions to the provider."""
    first_pause: float = 10.0
    """After a failure. Where there is no room now, there may be some in a few minutes."""
    longest_pause: float = 300.0


@dataclass(slots=True, kw_only=True)
class _Case:
    """One lost node. All times are monotonic seconds."""

    since: float
    pause: float
    not_before: float = float("-inf")
    certain: bool = False


class ReplacementPolicy:
    """Decides for one elastic run. All times are monotonic seconds; not for use by several threads at once.

    Args:
        pace: how long it waits for what.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._cases: dict[str, _Case] = {}

    def note_lost(self, names: Iterable[str], *, now: float, certain: Collection[str] = ()) -> None:
        """Take these nodes, and no others, as lost now; one that has come back starts over when it is lost again.

        Args:
            certain: those of them that need no confirmation, since the provider shows them as stopped, or as left
                half-made by a command that was killed.
        """
        pause = self._pace.first_pause
        self._cases = {name: self._cases.get(name) or _Case(since=now, pause=pause) for name in names}
        for name, case in self._cases.items():
            case.certain = name in certain

    def due(self, *, now: float, most: int | None = None) -> list[str]:
        """The nodes to replace now, sorted by name: when one of them is due, all that are lost.

        Args:
            most: nodes that the run takes: none with a higher index is replaced. None: any.
        """
        beyond = float("inf") if most is None else most
        cases = {
            name: case for name, case in self._cases.items() if now >= case.not_before and 0 < index_of(name) < beyond
        }
        is_due = any(case.certain or now - case.since >= self._pace.confirm for case in cases.values())
        return sorted(cases) if is_due else []

    def later(self, names: Iterable[str], *, now: float) -> None:
        """Put off the next attempt for these nodes, each time for longer: one failed, or the head says that they
        run."""
        for case in (self._cases[name] for name in names if name in self._cases):
            case.not_before = now + case.pause
            case.pause = min(PAUSE_GROWTH * case.pause, self._pace.longest_pause)

    def replaced(self, name: str) -> None:
        """Note that a node has been replaced; what was known of it no longer counts."""
        self._cases.pop(name, None)


def index_of(name: str) -> int:
    """The number at the end of a node's name; 0: the head."""
    return int(name.rpartition("-")[2])
