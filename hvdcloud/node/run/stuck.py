"""When a run that says nothing is taken to be stuck. Pure: no clock, no process.

The supervisor asks every node that has ranks to look at them (monitor/stillness.py) once nothing was printed and no
checkpoint was written for half of the limit. Anything that moves anywhere starts the clock again. A run is stuck when
for the whole limit nothing moved, and several looks at every node have said so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hvdcloud.runs.stacks import RankStacks, Stuck, grouped

ROUNDS = 4
"""How often every node has to have seen nothing, before a run is stuck."""
LEAST_PAUSE = 0.5
"""Seconds between two looks: in less, a thread that works now and then has not run for longer than a look takes it."""
BUSY_FACTOR = 4.0
"""How many times the limit a rank may compute at the same place, without any other sign."""
ANSWER_SECONDS = 120.0
"""How long a node may take to look, or to take stacks; a look that fails says nothing."""
_MOST_TENSORS = 32
_MOST_RANKS = 4096
_RANK = re.compile(rb"\[(\d+)\] ")
# What Horovod prints every HOROVOD_STALL_CHECK_TIME_SECONDS (stall_inspector.cc): a sentence, "Missing ranks:", and for
# each a line "3: [allreduce.grad.weight, …]".
_STALL = re.compile(rb"submitted to be reduced, gathered or broadcasted by subset of ranks|stall_inspector\.cc")
_STALLED_RANKS = re.compile(rb"(?:Missing|Stalled) ranks:\s*$")
_STALLED_RANK = re.compile(rb"\s*(\d+)!?: \[(.*?)(?: \.\.\.)?\]?\s*$")


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
        lines = re.split(rb"[\r\n]", self._held + data)
        self._held = lines.pop()[-4096:]
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
        if self._inside is None or who != self._inside:
            return bool(said.strip())
        if _STALLED_RANKS.match(said):
            return False
        if found := _STALLED_RANK.match(said):
            names = found[2].decode(errors="replace").split(", ")[:_MOST_TENSORS]
            if len(self.missing) < _MOST_RANKS and len(found[1]) < 7:
                self.missing[int(found[1])] = tuple(name for name in names if name)
            return False
        self._inside = None
        return bool(said.strip())


def ranks_in(answer: Mapping[str, Any], key: str) -> set[int]:
    """The ranks that a node has listed."""
    found = answer.get(key)
    return {each for each in found if isinstance(each, int)} if isinstance(found, list) else set()


class StuckWatch:
    """Decides when nodes look at their ranks, and whether the run is stuck.

    Args:
        limit: seconds without any sign of work.
        now: monotonic seconds, here and everywhere below.
    """

    def __init__(self, limit: float, *, now: float) -> None:
        self._limit = limit
        self._since = now
        self._stalls = StallReader()
        self._answers: dict[str, bool | None] = {}
        """Of the nodes that were asked in this round: whether they could compare; None: not there yet."""
        self._asked_at = 0.0
        self._next_look = 0.0
        self._rounds: int | None = None
        """How many were still, since the clock has begun; None: no node was asked yet."""
        self._busy = False
        self._stacks: dict[str, Sequence[RankStacks]] = {}
        self._waits_for_stacks: set[str] = set()
        self._stacks_asked_at: float | None = None

    def output(self, data: bytes, *, now: float) -> None:
        """The log has grown by this."""
        if self._stalls.feed(data):
            self.worked(now=now)

    def worked(self, *, now: float) -> None:
        """Something has moved: the clock begins again."""
        self._since = max(self._since, now)
        self._rounds, self._busy, self._stacks_asked_at = None, False, None
        # Horovod says it again while it is so.
        self._stalls.missing = {}
        self._answers.clear()

    def question(self, nodes: Collection[str], *, now: float) -> dict[str, Any] | None:
        """What to ask the nodes that have ranks now; None: nothing.

        Args:
            nodes: empty while ranks start or find each other: the clock begins again.
        """
        if not nodes:
            self.worked(now=now)
            return None
        if self._stacks_asked_at is not None:
            return None
        if self._is_still(now):
            self._stacks_asked_at = now
            self._stacks.clear()
            self._waits_for_stacks = set(nodes)
            return {"type": "stacks"}
        if self._rounds is None:
            if now - self._since < self._limit / 2:
                return None
        elif now < self._next_look or (None in self._answers.values() and now - self._asked_at < ANSWER_SECONDS):
            return None
        fresh = self._rounds is None
        self._rounds = self._rounds or 0
        self._answers = dict.fromkeys(nodes)
        self._asked_at, self._next_look = now, now + min(60.0, max(LEAST_PAUSE, self._limit / 10))
        return {"type": "look", "fresh": fresh, "of": self._since}

    def _is_still(self, now: float) -> bool:
        limit = self._limit * (BUSY_FACTOR if self._busy else 1.0)
        return self._rounds is not None and self._rounds >= ROUNDS and now - self._since >= limit

    def looked(self, node: str, answer: Mapping[str, Any], *, now: float) -> None:
        """A node has looked at its ranks."""
        if answer.get("of") != self._since or self._answers.get(node, True) is not None:
            # It was asked before something moved.
            return
        written = answer.get("written")
        if isinstance(written, (int, float)) and now - written > self._since:
            self.worked(now=now - written)
            return
        if answer.get("signs"):
            self.worked(now=now)
            return
        self._busy = self._busy or self._works(answer)
        self._answers[node] = bool(answer.get("compared"))
        if self._rounds is not None and all(self._answers.values()):
            self._rounds += 1

    def _works(self, answer: Mapping[str, Any]) -> bool:
        """Whether a rank of the node may be at work, although nothing moves.

        Where Horovod names ranks that the others wait for, these are: what the others compute is their wait. So is what
        those compute beside their main thread, in Horovod's own.
        """
        if missing := self._stalls.missing.keys():
            return not missing.isdisjoint(ranks_in(answer, "busy_main"))
        return bool(ranks_in(answer, "busy"))

    def took(self, node: str, answer: Mapping[str, Any]) -> None:
        """A node has taken the stacks of its ranks."""
        self._stacks[node] = RankStacks.all_from_json(answer.get("ranks"))
        self._waits_for_stacks.discard(node)

    def verdict(self, *, now: float) -> tuple[Stuck, Sequence[RankStacks]] | None:
        """That the run is stuck, and every rank's stacks; None: it is not, or the stacks are not there yet."""
        if self._stacks_asked_at is None:
            return None
        if self._waits_for_stacks and now - self._stacks_asked_at < ANSWER_SECONDS:
            return None
        stacks = sorted((each for found in self._stacks.values() for each in found), key=lambda each: each.rank)
        groups = grouped(stacks, missing=self._stalls.missing)
        return Stuck(seconds=round(now - self._since, 1), groups=groups), stacks
