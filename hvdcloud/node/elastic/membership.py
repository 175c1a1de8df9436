"""Which nodes take part in an elastic run, and under which names Horovod knows them. Pure: no clock, no network.

Horovod 0.28.1 has its own ideas of hosts, which decide what may be done when (horovod/runner/elastic):

* A host whose worker has failed is never used again under its name (discovery.py), so a node that returns gets a new
  one: `digits-2`, then `digits-2-g2`.
* A change of the list reaches rank 0's worker by a call that waits for a minute where its node does not answer
  (driver.py), with the driver's lock held. And workers that are just being reset throw the notice of another change
  away (common/elastic.py, State.on_reset). So after a loss or a change the list stays as it is for Gloo's timeout: by
  then, the workers have found each other, or have ended. A host that is dead and listed does no harm.
* A removal that leaves fewer than the least number deadlocks (horovod/horovod#3494), so it is not made.
* A listed host whose worker cannot start ends the whole job, so a node is only listed when its agent has proved that it
  can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from hvdcloud.runs import state

MARGIN_BEATS = 5
"""Beyond Gloo's timeout, for what agents report with their heartbeats."""
MOST_FAILURES = 3
"""How often the workers of one node may fail, one soon after the other, before it is no longer used."""
FORGIVEN_SECONDS = 120.0
"""A node that has trained for longer since its last failure begins to count anew: what it trains between two is worth
more than the pauses that they cost."""


class Place(str, Enum):
    """A node's place in the run."""

    PREPARING = "preparing"
    """It gets the code and the environment of the run."""
    JOINING = "joining"
    """Its agent starts, and tries what a worker needs."""
    READY = "ready"
    LISTED = "listed"
    """Horovod uses it."""
    FAILED = "failed"
    """Its worker ended, and the node itself answers."""
    LOST = "lost"
    LEAVING = "leaving"
    GONE = "gone"
    """It has left, and is not expected back."""


@dataclass
class Member:
    """One node of the run."""

    name: str
    index: int
    slots: int
    """Ranks that it takes."""
    place: Place = Place.JOINING
    alias: str = ""
    """The name that Horovod knows or last knew it by."""
    since: float = 0.0
    """Seconds since the epoch."""
    why: str = ""
    failures: int = 0
    failed_at: float = float("-inf")
    listings: int = 0
    listed_at: float = float("-inf")
    """Monotonic seconds."""
    missed: int = 0
    """How often in a row it was listed and no worker came."""

    @property
    def is_candidate(self) -> bool:
        """Whether it could be listed: it is ready, or its worker failed and gets another chance."""
        return self.place is Place.READY or (self.place is Place.FAILED and self.failures < MOST_FAILURES)

    @property
    def next_alias(self) -> str:
        """The name under which it is listed next."""
        return self.name if self.listings == 0 else f"{self.name}-g{self.listings + 1}"

    def shown(self) -> state.Member:
        """The member as the run's state has it."""
        return state.Member(
            name=self.name,
            alias=self.alias or self.name,
            state=self.place.value,
            since=self.since or None,
            why=self.why,
        )


class Membership:
    """The nodes of one run.

    Args:
        members: those that the run starts with.
        least: nodes below which Horovod waits.
        most: nodes that Horovod uses at once.
        quiet: seconds after a loss or a change until the workers have found each other again, or have ended.
        wall: the time of day, seconds since the epoch. Every `now` is in monotonic seconds.
        renames: a node gets another name each time it is listed.
    """

    def __init__(
        self,
        members: Iterable[Member],
        *,
        least: int,
        most: int,
        quiet: float,
        wall: Callable[[], float],
        renames: bool = True,
    ) -> None:
        self.members = {member.name: member for member in members}
        self.least = least
        self.most = most
        self._quiet = quiet
        self._wall = wall
        self._renames = renames
        self._quiet_until = float("-inf")
        """Until then the list stays as it is."""
        self._excused_until = float("-inf")
        """Until then a worker that fails may have failed because of an earlier loss."""
        self._listed: dict[str, str] = {}

    # -- what happens ------------------------------------------------------------------------------------------------

    def move(self, name: str, place: Place, why: str = "") -> None:
        member = self.members[name]
        member.place, member.why, member.since = place, why, self._wall()

    def lost(self, name: str, why: str, *, now: float) -> None:
        """Note that a node no longer answers."""
        was_used = self.members[name].place in (Place.LISTED, Place.LEAVING)
        self.move(name, Place.LOST, why)
        if was_used:
            self._quiet_until = self._excused_until = now + self._quiet

    def failed(self, name: str, why: str, *, now: float) -> None:
        """Note that a node's worker ended with an error; Horovod will not use this name of the node again."""
        member = self.members[name]
        # Workers that end while the others are still getting over an earlier loss end because of it.
        if now >= self._excused_until:
            # It was listed again when the others had continued.
            recent = now - member.failed_at < self._quiet + FORGIVEN_SECONDS
            member.failures = member.failures + 1 if recent else 1
            member.failed_at = now
        self.move(name, Place.FAILED, why)
        self._quiet_until = self._excused_until = now + self._quiet

    def admit(self, name: str, *, index: int, slots: int) -> Member:
        """The member for a node that is new, or was replaced."""
        member = self.members.get(name)
        if member is None:
            member = self.members[name] = Member(name=name, index=index, slots=slots)
        member.slots = slots
        member.failures = 0
        self.move(name, Place.PREPARING)
        return member

    def started_again(self, *, now: float) -> None:
        """Note that Horovod's driver is a new one: it knows of no failed hosts and starts with an empty list."""
        for member in self.members.values():
            if member.place in (Place.LISTED, Place.FAILED):
                self.move(member.name, Place.READY)
        self._listed = {}
        self._quiet_until = self._excused_until = now

    # -- what follows ------------------------------------------------------------------------------------------------

    def settled(self, *, now: float) -> bool:
        """Whether the last loss or change is so long ago that the workers have found each other, or have ended."""
        return now >= self._quiet_until

    def in_use(self) -> list[Member]:
        """Those that Horovod uses."""
        return [member for member in self.members.values() if member.place is Place.LISTED]

    def usable(self) -> list[Member]:
        """Those that Horovod uses or could use now."""
        return [*self.in_use(), *self._candidates()]

    def may_leave(self, names: Iterable[str]) -> bool:
        """Whether enough would remain without these."""
        return len({member.name for member in self.usable()} - {*names}) >= self.least

    def list_unused_again(self, used: Iterable[str], *, now: float) -> None:
        """Give those that were listed long ago and have no worker yet another name: Horovod has missed them. Or the
        others take long until they commit: then after twice as long, and so on."""
        for member in self.in_use():
            if member.name in used:
                member.missed = 0
            elif now - member.listed_at > self._quiet * 2**member.missed:
                member.missed += 1
                self.move(member.name, Place.READY)

    def change(self, *, now: float) -> dict[str, int] | None:
        """The list that Horovod should see from now on, if it should change now: slots by alias. New ones count as
        listed."""
        if not self.settled(now=now):
            return None
        keep = {member.alias: member for member in self.in_use()}
        for member in self._candidates()[: max(0, self.most - len(keep))]:
            keep[member.next_alias if self._renames else member.name] = member
        leaving = [member for member in self.members.values() if member.place is Place.LEAVING]
        # As many of those that leave stay listed as Horovod needs for its minimum.
        for member in leaving[: max(0, self.least - len(keep))]:
            if member.alias in self._listed:
                keep[member.alias] = member
        if keep.keys() == self._listed.keys():
            return None
        for alias, member in keep.items():
            if member.place is not Place.LEAVING and member.place is not Place.LISTED:
                member.alias = alias
                member.listings += 1
                member.listed_at = now
                self.move(member.name, Place.LISTED)
        self._listed = {alias: member.name for alias, member in keep.items()}
        self._quiet_until = now + self._quiet
        return {alias: member.slots for alias, member in keep.items()}

    def is_listed(self, name: str) -> bool:
        """Whether Horovod's list has this node now, under any name."""
        return name in self._listed.values()

    def shown(self) -> list[state.Member]:
        """As the run's state has them, the head first."""
        return [member.shown() for member in self._in_order()]

    def _candidates(self) -> list[Member]:
        return [member for member in self._in_order() if member.is_candidate]

    def _in_order(self) -> list[Member]:
        return sorted(self.members.values(), key=lambda member: member.index)
