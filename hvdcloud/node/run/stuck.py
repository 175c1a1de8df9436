"""When a run that says nothing is taken to be stuck. Pure: no clock, no process.

Once nothing was printed and no checkpoint was written for half of the limit, every node that has ranks is asked for
their stacks (monitor/stacks.py), again and again. Anything that moves anywhere starts the clock again. A run is stuck
when for the whole limit nothing moved, and several looks at every node have said so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from hvdcloud.runs.stacks import RankStacks, Stuck, grouped

ROUNDS = 4
"""How many looks at every node have to be equal before a run is stuck."""
LEAST_PAUSE = 0.5
"""Seconds between two looks: in less, a thread that works now and then has not run for longer than a look takes it."""
BUSY_FACTOR = 4.0
"""How many times the limit a rank may compute at the same place, without any other sign."""
ANSWER_SECONDS = 120.0
"""How long a node may take to answer."""
MAIN_BUSY = 0.01
"""Of a core; below, a main thread waits, and looks around now and then."""
TREE_BUSY = 0.25
"""Of a core, for all threads of a rank's processes. A thread of Horovod that asks the other ranks a thousand times a
second (HOROVOD_CYCLE_TIME) takes up to half of that."""
MOVED_BYTES = 1 << 20
_MOST_TENSORS = 32
_MOST_RANKS = 4096
_RANK = re.compile(rb"\[(\d+)\] ")
# What Horovod prints every HOROVOD_STALL_CHECK_TIME_SECONDS (stall_inspector.cc): a sentence, "Missing ranks:", and for
# each a line "3: [allreduce.grad.weight, …]".
_STALL = re.compile(rb"submitted to be reduced, gathered or broadcasted by subset of ranks|stall_inspector\.cc")
_STALLED_RANKS = re.compile(rb"(?:Missing|Stalled) ranks:\s*$")
_STALLED_RANK = re.compile(rb"\s*(\d{1,6})!?: \[(.*?)(?: \.\.\.)?\]?\s*$")


class StallReader:
    """Tells Horovod's complaints about ranks that wait from what the ranks print; keeps the last complaint."""

    def __init__(self) -> None:
        self.missing: dict[int, tuple[str, ...]] = {}
        """Tensors that others have submitted, by the rank that has not."""
        self._held = b""
        self._inside: bytes | None = None
        """Whose complaint is read."""

    def feed(self, data: bytes) -> bool:
        """The next of the log. Returns whether a rank, or the launcher, has printed anything else."""
        # A progress bar ends its lines with a return.
        *lines, held = re.split(rb"[\r\n]", self._held + data)
        self._held = held[-4096:]
        # All of them are read: each may begin or end a complaint.
        news = sum(map(self._is_news, lines)) > 0
        # A line of Horovod's own begins with its time in brackets, and may become a complaint.
        rest = _RANK.sub(b"", self._held, count=1)
        return news or (self._inside is None and bool(rest.strip()) and not rest.startswith(b"["))

    def _is_news(self, line: bytes) -> bool:
        rank = _RANK.match(line)
        who, said = (rank[1], line[rank.end() :]) if rank else (b"", line)
        if _STALL.search(said):
            self._inside, self.missing = who, {}
            return False
        if who == self._inside:
            if _STALLED_RANKS.match(said):
                return False
            if found := _STALLED_RANK.match(said):
                names = found[2].decode(errors="replace").split(", ")[:_MOST_TENSORS]
                if len(self.missing) < _MOST_RANKS:
                    self.missing[int(found[1])] = tuple(name for name in names if name)
                return False
            self._inside = None
        return bool(said.strip())


class _Look(NamedTuple):
    """What a node has said of its ranks at one moment of its own clock."""

    at: float
    stacks: Sequence[RankStacks]
    used: Mapping[int, tuple[float, float, float]]
    """By rank, so far: seconds of a core by the main threads of its processes, the same by all threads, and bytes from
    and to disks."""


class StuckWatch:
    """Decides when nodes are asked for the stacks of their ranks, and whether the run is stuck.

    Args:
        limit: seconds without any sign of work; None: the run is not watched.
        ask: sends a node a message, whose answer `heard` gets.
        now: monotonic seconds, here and everywhere below.
    """

    def __init__(self, limit: float | None, ask: Callable[[str, dict[str, Any]], object], *, now: float) -> None:
        self._limit = float("inf") if limit is None else limit
        self._ask = ask
        self._stalls = StallReader()
        self._nodes: set[str] = set()
        self.worked(now=now)

    def output(self, data: bytes, *, now: float) -> None:
        """Take what was added to the log, which may be nothing."""
        if data and self._stalls.feed(data):
            self.worked(now=now)

    def worked(self, *, now: float) -> None:
        """Start the clock again, because something has moved."""
        self._since = now
        self._rounds, self._last = 0, False
        self._looks: dict[str, _Look] = {}
        self._waits_for: set[str] = set()
        self._asked_at = float("-inf")
        self._busy: set[int] = set()
        self._busy_main: set[int] = set()
        # Horovod says it again while it is so.
        self._stalls.missing = {}

    def turn(self, nodes: Collection[str], *, now: float) -> tuple[Stuck, Sequence[RankStacks]] | None:
        """Ask what is due. Returns that the run is stuck, and every rank's stacks; None: it is not.

        Args:
            nodes: those that have ranks; empty while ranks start or find each other: the clock begins again.
        """
        if not nodes or self._nodes != {*nodes}:
            self._nodes = {*nodes}
            self.worked(now=now)
            return None
        silent = now - self._since
        over = silent >= self._limit * (BUSY_FACTOR if self._works() else 1.0)
        if self._waits_for and now - self._asked_at < ANSWER_SECONDS:
            return None
        if self._last and over:
            stacks = sorted((each for look in self._looks.values() for each in look.stacks), key=lambda each: each.rank)
            return Stuck(seconds=round(silent, 1), groups=grouped(stacks, missing=self._stalls.missing)), stacks
        pause = LEAST_PAUSE if over else min(60.0, max(LEAST_PAUSE, self._limit / 10))
        if silent >= self._limit / 2 and now - self._asked_at >= pause:
            # The last look is for people, who want to see the native code.
            self._last = over and self._rounds >= ROUNDS
            self._waits_for, self._asked_at = {*nodes}, now
            for node in nodes:
                self._ask(node, {"type": "stacks", "native": self._last})
        return None

    def heard(self, node: str, answer: Mapping[str, Any], *, now: float) -> None:
        """Take a node's answer."""
        if node not in self._waits_for:
            # It was asked before something moved.
            return
        used = {int(rank): (float(main), float(every), float(moved)) for rank, (main, every, moved) in answer["used"]}
        look = _Look(float(answer["at"]), RankStacks.all_from_json(answer["ranks"]), used)
        written_at = now - float("inf" if answer["written"] is None else answer["written"])
        if written_at > self._since:
            self.worked(now=written_at)
        elif self._has_moved(self._looks.get(node, look), look):
            self.worked(now=now)
        else:
            self._looks[node] = look
            self._waits_for.discard(node)
            self._rounds += 0 if self._waits_for else 1

    def _has_moved(self, before: _Look, look: _Look) -> bool:
        """Whether ranks have begun or ended, a main thread is at another place in its Python, or a rank has read or
        written files; notes which ranks compute at one place."""
        if before.used.keys() != look.used.keys():
            return True
        places, earlier = _places(look), _places(before)
        seconds = max(0.1, look.at - before.at)
        for rank, now in look.used.items():
            main, every, moved = (after - then for after, then in zip(now, before.used[rank], strict=True))
            computes = main >= MAIN_BUSY * seconds
            if moved >= MOVED_BYTES or (rank in places and places[rank] != earlier.get(rank, places[rank])):
                return True
            if computes and not places.get(rank):
                # Its stack cannot be taken: it may be anywhere.
                return True
            if computes:
                self._busy_main.add(rank)
            if computes or every >= TREE_BUSY * seconds:
                self._busy.add(rank)
        return False

    def _works(self) -> bool:
        """Whether a rank may be at work, although nothing moves.

        Where Horovod names ranks that the others wait for, these are: what the others compute is their wait. So is what
        those compute beside their main thread, in Horovod's own.
        """
        missing = self._stalls.missing.keys()
        return bool(self._busy_main & missing if missing else self._busy)


def _places(look: _Look) -> dict[int, object]:
    """Where the main thread of each rank is in its Python; empty where that is not known."""
    return {each.rank: main.python if (main := each.trains.main) else () for each in look.stacks}
