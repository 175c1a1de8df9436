"""How many epochs or steps a run has done, read from what its ranks print. Pure.

Frameworks and scripts write it each in their own way; those that are known count, and where none is recognised nothing
is said. A resumed run counts what it did itself: from the first number that was seen to the last.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from hvdcloud.runs.failure import KEPT_LINES, Failure, explain
from hvdcloud.runs.log_lines import LAUNCHER_PREFIX, Lines, Speaker, counted, numbers_in, rank_and_text
from hvdcloud.runs.state import RunState

_COLOUR = re.compile(rb"\x1b\[[0-9;:]{0,64}m")
_MOST_RANKS = 4096
"""Whose lines are kept; a log may name a million."""
_MOST_KEPT = 64_000_000
"""Bytes of lines that are kept; of more, each rank's older half is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a run has done."""

    unit: str
    """epoch | step"""
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run is."""

    unit: str
    """epoch | step"""
    number: int
    """The last that was seen."""
    total: int | None
    """Of how many, if it says so."""


class _Counter:
    """The numbers of one kind: the lowest, the highest, and how far apart they come."""

    def __init__(self) -> None:
        self.lowest: int | None = None
        self.highest = 0
        self.stride: int | None = None
        self.starts_again = False
        """It came back to its beginning: it counts within something else, such as steps of an epoch."""
        self.total: int | None = None
        self.last: int | None = None
        """The last that was seen."""

    def add(self, number: int, total: int | None) -> None:
        # Not every line says it.
        self.total = total or self.total
        if self.last is not None and number != self.last:
            gap = number - self.last
            if gap > 0:
                self.stride = min(gap, self.stride or gap)
            elif self.lowest is not None and number <= self.lowest:
                self.starts_again = True
        self.lowest = number if self.lowest is None else min(self.lowest, number)
        self.highest = max(self.highest, number)
        self.last = number


class LogReader:
    """What a log says of its run: the last line, how far it is, the newest numbers.

    In an elastic run rank 0 may move from one worker to another; the lines of every rank are read.
    """

    def __init__(self, *, elastic: bool) -> None:
        self.last_line = ""
        self.numbers: dict[str, float] = {}
        """`loss`, `images/s`: of the last line that had any."""
        self.metrics: dict[str, float] = {}
        """The newest of each number."""
        self._counters = {"epoch": _Counter(), "step": _Counter()}
        self._ranks: dict[int, deque[tuple[int, bytes]]] = {}
        self._launcher: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._line = 0
        self._speaker = Speaker(elastic=elastic)
        self._lines = Lines()
        self._kept = 0

    def feed(self, data: bytes) -> None:
        """Take a piece of the log, wherever it is cut."""
        for line in self._lines.feed(data):
            found = rank_and_text(line)
            if found is None:
                if line.startswith(LAUNCHER_PREFIX):
                    self._launcher.append(line)
                continue
            rank, raw = found
            self._line += 1
            self._keep(rank, _as_drawn(raw))
            if not self._speaker.may(rank):
                continue
            text = _COLOUR.sub(b"", raw).decode(errors="backslashreplace")
            if text.strip():
                self.last_line = text.strip()
            for part in text.split("\r"):
                at, numbers = counted(part), numbers_in(part)
                if (at or numbers) and self._speaker.says(rank, at):
                    for unit, count in at.items():
                        self._counters[unit].add(*count)
                    self.numbers = numbers or self.numbers
                    self.metrics |= numbers

    @property
    def position(self) -> Position | None:
        """The last epoch, or where none are counted the last step."""
        for unit, counter in self._counters.items():
            if counter.last is not None:
                return Position(unit=unit, number=counter.last, total=counter.total)
        return None

    @property
    def progress(self) -> Progress | None:
        """None: nothing was recognised, or not enough to count."""
        epochs, steps = self._counters["epoch"], self._counters["step"]
        if epochs.lowest is not None:
            return Progress(unit="epoch", count=epochs.highest - epochs.lowest + (epochs.stride or 1))
        # One number of steps alone does not say how many there were since the last that would have been printed.
        if steps.lowest is None or steps.stride is None or steps.starts_again:
            return None
        return Progress(unit="step", count=steps.highest - steps.lowest + steps.stride)

    def _keep(self, rank: int, line: bytes) -> None:
        """Keep a line until it is known whether the run fails, and which rank began with it."""
        lines = self._ranks.get(rank)
        if lines is None:
            if len(self._ranks) >= _MOST_RANKS:
                return
            lines = self._ranks[rank] = deque(maxlen=KEPT_LINES)
        lines.append((self._line, line))
        self._kept += len(line)
        if self._kept > _MOST_KEPT:
            self._kept = self._kept_now()  # Lines have made place for others meanwhile.
            if self._kept > _MOST_KEPT // 2:
                for each in self._ranks.values():
                    for _ in range(len(each) // 2):
                        each.popleft()
                self._kept = self._kept_now()

    def _kept_now(self) -> int:
        return sum(len(line) for each in self._ranks.values() for _, line in each)

    def failure(self, state: RunState) -> Failure | None:
        """Why the run failed, if it did; the log is known up to its end."""
        ranks = {
            rank: [(number, raw.decode(errors="backslashreplace")) for number, raw in lines]
            for rank, lines in self._ranks.items()
        }
        launcher = [line.removeprefix(LAUNCHER_PREFIX).decode(errors="backslashreplace") for line in self._launcher]
        return explain(state, ranks=ranks, launcher=[line for line in launcher if line.strip()])


def _as_drawn(line: bytes) -> bytes:
    """What is left of a line that was drawn over itself, as a progress bar does; without its colours."""
    return _COLOUR.sub(b"", line.rstrip(b"\b\r").rpartition(b"\r")[2])
