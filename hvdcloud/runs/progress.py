"""How many epochs or steps a run has done, read from what its ranks print. Pure.

Frameworks and scripts write it each in their own way; those that are known count, and where none is recognised nothing
is said. A resumed run counts what it did itself: from the first number that was seen to the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from hvdcloud.runs.log_lines import LONGEST_PREFIX, Speaker, counted, numbers_in, rank_and_text


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
        self.starts_anew = False
        """It came back to its beginning: it counts within something else, such as steps of an epoch."""
        self.total: int | None = None
        self._last: int | None = None

    @property
    def last(self) -> int | None:
        """The last that was seen."""
        return self._last

    def add(self, number: int, total: int | None) -> None:
        # A line between, such as that it goes on there, may not say it.
        self.total = total or self.total
        if self._last is not None and number != self._last:
            gap = number - self._last
            if gap > 0:
                self.stride = min(gap, self.stride or gap)
            elif self.lowest is not None and number <= self.lowest:
                self.starts_anew = True
        self.lowest = number if self.lowest is None else min(self.lowest, number)
        self.highest = max(self.highest, number)
        self._last = number


class ProgressReader:
    """Reads lines as they come."""

    def __init__(self) -> None:
        self._epochs = _Counter()
        self._steps = _Counter()

    def feed(self, line: str) -> None:
        """Take one line, without the rank's prefix."""
        self.take(counted(line))

    def take(self, at: dict[str, tuple[int, int | None]]) -> None:
        """Take where a line says it is."""
        for unit, counter in (("epoch", self._epochs), ("step", self._steps)):
            if unit in at:
                counter.add(*at[unit])

    @property
    def position(self) -> Position | None:
        """The last epoch, or where none are counted the last step."""
        for unit, counter in (("epoch", self._epochs), ("step", self._steps)):
            if counter.last is not None:
                return Position(unit=unit, number=counter.last, total=counter.total)
        return None

    @property
    def progress(self) -> Progress | None:
        """None: nothing was recognised, or not enough to count."""
        epochs, steps = self._epochs, self._steps
        if epochs.lowest is not None:
            return Progress(unit="epoch", count=epochs.highest - epochs.lowest + (epochs.stride or 1))
        # One number of steps alone does not say how many there were since the last that would have been printed.
        if steps.lowest is None or steps.stride is None or steps.starts_anew:
            return None
        return Progress(unit="step", count=steps.highest - steps.lowest + steps.stride)


class LogReader:
    """What a log says of its run: the last line, how far it is, the newest numbers.

    Args:
        elastic: rank 0 may move from one worker to another; the lines of every rank are looked at.
    """

    def __init__(self, *, elastic: bool) -> None:
        self.last_line = ""
        self.numbers: dict[str, float] = {}
        """`loss`, `images/s`: of the last line that had any."""
        self._speaker = Speaker(elastic=elastic)
        self._reader = ProgressReader()
        self._rest = b""

    @property
    def position(self) -> Position | None:
        return self._reader.position

    @property
    def progress(self) -> Progress | None:
        return self._reader.progress

    def feed(self, data: bytes) -> None:
        """Take a piece of the log, wherever it is cut."""
        *lines, rest = (self._rest + data).split(b"\n")
        # Enough of a line that never ends to see whose it is.
        self._rest = rest[:LONGEST_PREFIX] + rest[LONGEST_PREFIX:][-4096:]
        for line in lines:
            found = rank_and_text(line)
            if found is None or not self._speaker.may(found[0]):
                continue
            rank, raw = found
            text = raw.decode(errors="replace")
            if text.strip():
                self.last_line = text.strip()
            for part in text.split("\r"):
                self._take(rank, part)

    def _take(self, rank: int, text: str) -> None:
        at, numbers = counted(text), numbers_in(text)
        if (at or numbers) and self._speaker.says(rank, at):
            self._reader.take(at)
            self.numbers = numbers or self.numbers
