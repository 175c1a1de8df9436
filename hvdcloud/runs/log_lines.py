"""A run's log, line by line: its rank, where in the training it was written, and whether it speaks for the run.

In a static run rank 0 speaks. In an elastic run rank 0 moves when nodes are lost, while the prefix of a line stays what
it was: the rank that its worker had first. There the worker that prints where the training is speaks, until another one
is further, or continues alone. Pure.
"""

from __future__ import annotations

import re

# What leads to the number: `epoch 3/12`, `Epoch: 3`, `[Epoch 3]`, `| epoch   3 |`, `Step #10`, `'epoch': 3`.
_LINK = r"""["']?[\s:=#(\[]{1,12}"""
# Neither a part of a longer word or path (`--epoch 3`, `epoch-3.pt`), nor a fraction (`'epoch': 2.98`).
_NUMBER = r"(\d{1,9})(?![\d\w]|\.\d)(?:\s*(?:/|of)\s*(\d{1,9}))?"
_UNITS = {
    "epoch": re.compile(rf"(?<![\w.\-/])epoch{_LINK}{_NUMBER}", re.IGNORECASE),
    "step": re.compile(rf"(?<![\w.\-/])(?:global[_ ]step|step|iter|iteration){_LINK}{_NUMBER}", re.IGNORECASE),
}
# An epoch of earlier: "resumed from epoch 7", "best: epoch 3".
_EARLIER = re.compile(r"\b(?:resum|restor|load|continu|reload|checkpoint|best|from|until|up to)", re.IGNORECASE)
_VALUE = r"""["']?\s*[:=]?\s*([-+]?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?)\s*(%)?(?![\w.])"""
_NAMED = {
    "loss": re.compile(rf"(?<![\w.\-/])(?:train(?:ing)?[ _])?loss{_VALUE}", re.IGNORECASE),
    "accuracy": re.compile(rf"(?<![\w.\-/])acc(?:uracy)?{_VALUE}", re.IGNORECASE),
}
_RATE = re.compile(
    r"(?<![\w.])(\d[\d,]*(?:\.\d+)?)\s*(images?|imgs?|samples?|examples?|tokens?|records?|sequences?)\s*(?:/|per)\s*s",
    re.IGNORECASE,
)
# A line, or its beginning; a carriage return, at which `splitlines` would cut too, is part of it.
_PIECE = re.compile(rb"[^\n]*\n|[^\n]+")
_RANK = re.compile(rb"\[(\d{1,6})\] ")
LONGEST_PREFIX = 9
"""Bytes of the longest prefix that a rank's line can have."""
_ALONE = 3
"""After this many telling lines of another worker, with none of the speaker's between them, it has taken over."""


def rank_and_text(line: bytes) -> tuple[int, bytes] | None:
    """Which rank's line it is, and the line without that; None: no rank's."""
    match = _RANK.match(line)
    return (int(match[1]), line[match.end() :]) if match else None


def counted(line: str) -> dict[str, tuple[int, int | None]]:
    """The epoch and the step that a line says it is at, and of how many if it says so."""
    found = {}
    for unit, pattern in _UNITS.items():
        match = pattern.search(line)
        if match is None or _EARLIER.search(line, 0, match.start()):
            continue
        number, total = int(match[1]), int(match[2]) if match[2] else None
        if total is None or number <= total:
            found[unit] = (number, total)
    return found


def numbers_in(line: str) -> dict[str, float]:
    """The numbers that one line names; of a progress bar that was drawn over itself, the last."""
    line = line.rstrip("\r").rpartition("\r")[2]
    values = {}
    for name, pattern in _NAMED.items():
        if (match := pattern.search(line)) and (value := _number(match[1])) is not None:
            values[name] = value / 100 if match[2] else value
    if (match := _RATE.search(line)) and (rate := _number(match[1])) is not None:
        unit = match[2].lower().rstrip("s")
        values["images/s" if unit == "img" else f"{unit}s/s"] = rate
    return values


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


class Speaker:
    """Tells the lines that speak for the run from those that other ranks print; in an elastic run that may change."""

    def __init__(self, *, elastic: bool) -> None:
        self._elastic = elastic
        self._rank: int | None = None if elastic else 0
        self._unit = ""
        self._at = -1
        self._other: int | None = None
        self._alone = 0

    def may(self, rank: int) -> bool:
        """Whether this rank's lines have to be looked at."""
        return self._elastic or rank == self._rank

    def says(self, rank: int, at: dict[str, tuple[int, int | None]]) -> bool:
        """Whether to take a line that is `at` (see `counted`), or has numbers; asked once for each, in order."""
        if not self._elastic:
            return rank == self._rank
        unit = next(iter(at), "")
        number = at[unit][0] if unit else -1
        if rank != self._rank and self._rank is not None:
            self._alone = self._alone + 1 if rank == self._other else 1
            self._other = rank
            further = unit == self._unit and number > self._at
            if not further and self._alone < _ALONE:
                return False
        self._rank, self._other, self._alone = rank, None, 0
        # Steps are counted within epochs where a program prints both: only the larger unit says which is further.
        if unit and (unit == "epoch" or self._unit != "epoch"):
            self._unit, self._at = unit, number
        return True


class RankLines:
    """Lets the lines through that begin with `[RANK] `, as soon as their beginning is known.

    A line that has no end yet, such as a progress bar, goes through piece by piece as it came.
    """

    def __init__(self, rank: int) -> None:
        self._prefix = b"[%d] " % rank
        self._start = b""
        """The beginning of a line, while it may still become either."""
        self._ours: bool | None = None
        """Whether the unfinished line is this rank's; None: not known yet."""

    def feed(self, data: bytes) -> bytes:
        """What to show of the next piece of the log."""
        shown = bytearray()
        for piece in _PIECE.findall(data):
            line = self._start + piece
            if self._ours is None:
                if line.startswith(self._prefix):
                    self._ours = True
                elif self._prefix.startswith(line):
                    self._start = line
                    continue
                else:
                    self._ours = False
            self._start = b""
            if self._ours:
                shown += line
            if line.endswith(b"\n"):
                self._ours = None
        return bytes(shown)
