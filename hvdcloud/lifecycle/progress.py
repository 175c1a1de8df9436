"""How many epochs or steps a run has done, read from what rank 0 prints. Pure.

Frameworks and scripts write it each in their own way; those that are known count, and where none is recognised nothing
is said. A resumed run counts what it did itself: from the first number that was seen to the last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# What leads to the number: `epoch 3/12`, `Epoch: 3`, `[Epoch 3]`, `| epoch   3 |`, `Step #10`, `'epoch': 3`.
_LINK = r"""["']?[\s:=#(\[]{1,12}"""
# Neither a part of a longer word or path (`--epoch 3`, `epoch-3.pt`), nor a fraction (`'epoch': 2.98`).
_NUMBER = r"(\d{1,9})(?![\d\w]|\.\d)(?:\s*(?:/|of)\s*(\d{1,9}))?"
_EPOCH = re.compile(rf"(?<![\w.\-/])epoch{_LINK}{_NUMBER}", re.IGNORECASE)
_STEP = re.compile(rf"(?<![\w.\-/])(?:global[_ ]step|step|iter|iteration){_LINK}{_NUMBER}", re.IGNORECASE)
# An epoch of earlier: "resumed from epoch 7", "best: epoch 3".
_EARLIER = re.compile(r"\b(?:resum|restor|load|continu|reload|checkpoint|best|from|until|up to)", re.IGNORECASE)


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
        self.total = total
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
    """Reads the lines of one rank, as they come."""

    def __init__(self) -> None:
        self._epochs = _Counter()
        self._steps = _Counter()

    def feed(self, line: str) -> None:
        """Take one line, without the rank's prefix."""
        for pattern, counter in ((_EPOCH, self._epochs), (_STEP, self._steps)):
            match = pattern.search(line)
            if match is None or _EARLIER.search(line, 0, match.start()):
                continue
            number, total = int(match[1]), int(match[2]) if match[2] else None
            if total is None or number <= total:
                counter.add(number, total)

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
