"""Which lost nodes of an elastic run are replaced, when, and what is said about it. Pure: no clock, no network.

An attached client follows it (lifecycle/replace.py). It replaces what the provider calls gone or stopped: a node that
is frozen, or that the head cannot reach, may come back with all that it holds, and the head then takes it back. It also
replaces a node whose machine of the user's does not answer, where the head has lost it too and another machine is free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

PAUSE_GROWTH = 1.6
CHECK_GROWTH = 1.5
SLOWEST_CHECKS = 10
"""How many times longer than at first the provider is left alone about a node that it says runs."""


class Found(Enum):
    """What the provider says about a node that is lost."""

    GONE = "is gone"
    STOPPED = "has stopped"
    SILENT = "is on a host that does not answer"
    RUNNING = "runs"
    """Or it is frozen, or starts: it is left alone."""


class Failure(Enum):
    """How much a failed attempt says about the next one."""

    PASSING = "passing"
    """There was no room, or no answer: later there may be."""
    NODE = "node"
    """No other attempt for this node would do better."""
    RUN = "run"
    """No node of this run can be replaced: a right is missing, or a limit is reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long the policy waits for what, in seconds."""

    confirm: float = 1.0
    """A node has to be lost, and seen to be lost twice, for this long: many come back."""
    silent: float = 30.0
    """The same for a node whose host does not answer."""
    check: float = 3.0
    """Between two questions to the provider."""
    first_pause: float = 10.0
    """After a failure. Where there is no room now, there may be some in a few minutes."""
    longest_pause: float = 300.0


@dataclass(slots=True, kw_only=True)
class _Case:
    """One lost node. All times are monotonic seconds."""

    since: float
    check: float
    pause: float
    not_before: float = float("-inf")
    certain: bool = False
    silent: bool = False
    given_up: bool = False
    said: set[str] = field(default_factory=set)


class ReplacementPolicy:
    """Decides for one elastic run. All times are monotonic seconds; not for use by several threads at once.

    Args:
        pace: how long it waits for what.
    """

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._cases: dict[str, _Case] = {}
        self.given_up = False
        """Whether no node of this run is replaced any more."""

    def note_lost(
        self, names: Iterable[str], *, now: float, certain: Collection[str] = (), silent: Collection[str] = ()
    ) -> None:
        """Take these nodes, and no others, as lost now; one that has come back starts over when it is lost again.

        Args:
            certain: those of them that need no confirmation, since the provider shows them as stopped, or as left
                half-made by a command that was killed.
            silent: those whose host does not answer; they are replaced later, and not together with others.
        """
        check, pause = self._pace.check, self._pace.first_pause
        self._cases = {name: self._cases.get(name) or _Case(since=now, check=check, pause=pause) for name in names}
        for name, case in self._cases.items():
            case.certain, case.silent = name in certain, name in silent

    def due(self, *, now: float, most: int | None = None) -> list[str]:
        """The nodes to replace now, sorted by name: when one of them is due, all that are lost.

        Args:
            most: nodes that the run takes: none with a higher index is replaced. None: any.
        """
        if self.given_up:
            return []
        beyond = float("inf") if most is None else most
        open_cases = {
            name: case
            for name, case in self._cases.items()
            if not case.given_up and now >= case.not_before and 0 < index_of(name) < beyond
        }
        due = {name for name, case in open_cases.items() if case.certain or now - case.since >= self._confirm(case)}
        if due:
            due |= {name for name, case in open_cases.items() if not case.silent}
        return sorted(due)

    def _confirm(self, case: _Case) -> float:
        return self._pace.silent if case.silent else self._pace.confirm

    def begun(self, name: str, found: Found, *, why: str = "") -> str | None:
        """The line about a replacement that begins, with why the node was lost if known; None if it was said before."""
        what = f"{found.value} ({why})" if why else found.value
        return self._once(f"node {name} {what}; replacing it", [name])

    def runs(self, name: str, *, now: float) -> None:
        """Note that it runs, as the provider or the head says: checked again, ever more rarely."""
        if case := self._cases.get(name):
            case.not_before = now + case.check
            case.check = min(CHECK_GROWTH * case.check, SLOWEST_CHECKS * self._pace.check)

    def failed(self, names: Collection[str], failure: Failure, reason: str, *, now: float) -> str | None:
        """The line about a failed attempt, None if it was said before; each failure makes the next pause longer."""
        if failure is Failure.RUN:
            known, self.given_up = self.given_up, True
            text = f"lost nodes are not replaced: {reason}; the run continues with the nodes that it has"
            return None if known else text
        nodes = f"node {', '.join(sorted(names))}"
        for case in (self._cases[name] for name in names if name in self._cases):
            case.given_up = failure is Failure.NODE
            case.not_before = now + case.pause
            case.pause = min(PAUSE_GROWTH * case.pause, self._pace.longest_pause)
        if failure is Failure.NODE:
            return self._once(f"{nodes} is not replaced: {reason}", names)
        return self._once(f"{nodes} could not be replaced: {reason}; trying again from time to time", names)

    def replaced(self, name: str) -> str:
        """The line about a node that has been replaced; what was known and said about it no longer counts."""
        self._cases.pop(name, None)
        return f"node {name} is back"

    def _once(self, text: str, names: Collection[str]) -> str | None:
        cases = [self._cases[name] for name in names if name in self._cases]
        known = bool(cases) and all(text in case.said for case in cases)
        for case in cases:
            case.said.add(text)
        return None if known else text


def index_of(name: str) -> int:
    """The number at the end of a node's name; 0: the head."""
    return int(name.rpartition("-")[2])
