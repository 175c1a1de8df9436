"""A run's log, line by line: its rank, where in the training it was written, and what numbers it names. Pure.

A job may print anything, in lines of any length. What is read of a line is bounded (`Lines`), and so is every
repetition in the expressions here: the time that a log takes grows with its length, and with nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

# What leads to the number: `epoch 3/12`, `Epoch: 3`, `[Epoch 3]`, `| epoch   3 |`, `Step #10`, `'epoch': 3`.
_LINK = r"""["']?[\s:=#(\[]{1,12}"""
# Neither a part of a longer word or path (`--epoch 3`, `epoch-3.pt`), nor a fraction (`'epoch': 2.98`).
_NUMBER = r"(\d{1,9})(?![\d\w]|\.\d)(?:\s{0,9}(?:/|of)\s{0,9}(\d{1,9}))?"
_UNITS = {
    "epoch": re.compile(rf"(?<![\w.\-/])epoch{_LINK}{_NUMBER}", re.IGNORECASE),
    "step": re.compile(rf"(?<![\w.\-/])(?:global[_ ]step|step|iter|iteration){_LINK}{_NUMBER}", re.IGNORECASE),
}
# An epoch of earlier: "resumed from epoch 7", "best: epoch 3".
_EARLIER = re.compile(r"\b(?:resum|restor|load|continu|reload|checkpoint|best|from|until|up to)", re.IGNORECASE)
_VALUE = r"""["']?\s{0,9}[:=]?\s{0,9}([-+]?\d{1,30}(?:[.,]\d{1,30}){0,9}(?:[eE][-+]?\d{1,9})?)\s{0,9}(%)?(?![\w.])"""
_NAMED = {
    "loss": re.compile(rf"(?<![\w.\-/])(?:train(?:ing)?[ _])?loss{_VALUE}", re.IGNORECASE),
    "accuracy": re.compile(rf"(?<![\w.\-/])acc(?:uracy)?{_VALUE}", re.IGNORECASE),
}
_RATE = re.compile(
    r"(?<![\w.])(\d[\d,]{0,15}(?:\.\d{1,15})?)\s{0,9}"
    r"(images?|imgs?|samples?|examples?|tokens?|records?|sequences?)\s{0,9}(?:/|per)\s{0,9}s",
    re.IGNORECASE,
)
# A line, or its beginning; a carriage return, at which `splitlines` would cut too, is part of it.
_PIECE = re.compile(rb"[^\n]*\n|[^\n]+")
_RANK = re.compile(rb"\[(\d{1,6})\] ")
LONGEST_PART = 2000
"""Bytes of a line that are read, of its beginning and of its end: a progress bar is one line, and its end counts."""
LAUNCHER_PREFIX = b"[launcher] "
_VERDICT_PREFIX = b"[hvdcloud] rank "


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
    """The numbers that one line names."""
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


class Lines:
    """Cuts a log into its lines as it comes, piece by piece; of a long line its beginning and its end."""

    def __init__(self) -> None:
        self.end = 0
        """Bytes of the log up to the end of the line that came last."""
        self._line = b""
        """What is kept of the line that has no end yet."""
        self._length = 0

    def of(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The lines of a whole log, the last one also without a newline."""
        for piece in pieces:
            yield from self.feed(piece)
        if self._length:
            yield from self.feed(b"\n")

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that end in the next piece, which may begin and end anywhere; without their newlines."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._take(part)
            line, length = self._line, self._length
            self.end += length + 1
            self._line, self._length = b"", 0
            yield line if length <= 2 * LONGEST_PART else line[:LONGEST_PART] + b" ... " + line[LONGEST_PART:]
        self._take(rest)

    def _take(self, part: bytes) -> None:
        self._length += len(part)
        line = self._line + part
        self._line = line if len(line) <= 2 * LONGEST_PART else line[:LONGEST_PART] + line[-LONGEST_PART:]


class LineFilter:
    """Lets the lines of a log through that begin with one of these prefixes; with `hides` all others.

    A line that has no end yet, such as a progress bar, goes through piece by piece as it came, once its beginning tells
    which it is.
    """

    def __init__(self, *prefixes: bytes, hides: bool = False) -> None:
        self._prefixes, self._hides = prefixes, hides
        self._start = b""
        """The beginning of a line, while it may still become either."""
        self._shown: bool | None = None
        """Whether the unfinished line is shown; None: not known yet."""

    def feed(self, data: bytes) -> bytes:
        """What to show of the next piece of the log."""
        shown = bytearray()
        for piece in _PIECE.findall(data):
            line, ended = self._start + piece, piece.endswith(b"\n")
            self._start = b""
            undecided = any(each != line and each.startswith(line) for each in self._prefixes)
            if self._shown is None and undecided and not ended:
                self._start = line
                continue
            if self._shown is None:
                self._shown = line.startswith(self._prefixes) is not self._hides
            if self._shown:
                shown += line
            self._shown = None if ended else self._shown
        return bytes(shown)


def rank_lines(rank: int) -> LineFilter:
    """Lets the lines of one rank through."""
    return LineFilter(b"[%d] " % rank)


def job_lines() -> LineFilter:
    """Lets everything through but the launcher's lines, and how ranks ended: that is told with its cause at the end."""
    return LineFilter(LAUNCHER_PREFIX, _VERDICT_PREFIX, hides=True)
