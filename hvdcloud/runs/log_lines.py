"""A run's log, line by line: its rank, where in the training it was written, and whether it speaks for the run.

In a static run rank 0 speaks. In an elastic run rank 0 moves when nodes are lost, while the prefix of a line stays what
it was: the rank that its worker had first. There the worker that prints where the training is speaks, until another one
is further, or continues alone. Pure.

A job may print anything, in lines of any length. What is read of a line is bounded (`Lines`), and so is every
repetition in the expressions here: the time that a log takes grows with its length, and with nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# What leads to the number: `epoch 3/12`, `Epoch: 3`, `[Epoch 3]`, `| epoch   3 |`, `Step #10`, `'epoch': 3`.
_LINK = r"""["']?[\s:=#(\[]{1,12}"""
# Neither a part of a longer word or path (`--epoch 3`, `epoch-3.pt`), nor a fraction (`'epoch': 2.98`).
_NUMBER = r"(\d{1,9})(?![\d\w]|\.\d)(?:\s{0,9}(?:/|of)\s{0,9}(\d{1,9}))?"
# Each with the letters without which it need not be tried: most lines have none of them.
_UNITS = {
    "epoch": (("epoch",), re.compile(rf"(?<![\w.\-/])epoch{_LINK}{_NUMBER}", re.IGNORECASE)),
    "step": (
        ("step", "iter"),
        re.compile(rf"(?<![\w.\-/])(?:global[_ ]step|step|iter|iteration){_LINK}{_NUMBER}", re.IGNORECASE),
    ),
}
# An epoch of earlier: "resumed from epoch 7", "best: epoch 3".
_EARLIER = re.compile(r"\b(?:resum|restor|load|continu|reload|checkpoint|best|from|until|up to)", re.IGNORECASE)
_VALUE = r"""["']?\s{0,9}[:=]?\s{0,9}([-+]?\d{1,30}(?:[.,]\d{1,30}){0,9}(?:[eE][-+]?\d{1,9})?)\s{0,9}(%)?(?![\w.])"""
_NAMED = {
    "loss": ("loss", re.compile(rf"(?<![\w.\-/])(?:train(?:ing)?[ _])?loss{_VALUE}", re.IGNORECASE)),
    "accuracy": ("acc", re.compile(rf"(?<![\w.\-/])acc(?:uracy)?{_VALUE}", re.IGNORECASE)),
}
# The unit is looked for first: numbers are in most lines, units are not.
_RATE_UNIT = re.compile(
    r"(images?|imgs?|samples?|examples?|tokens?|records?|sequences?)\s{0,9}(?:/|per)\s{0,9}s", re.IGNORECASE
)
_RATE_NUMBER = re.compile(r"(?<![\w.])(\d[\d,]{0,30}(?:\.\d{1,30})?)\s{0,9}\Z")
_LONGEST_RATE = 72
# A line, or its beginning; a carriage return, at which `splitlines` would cut too, is part of it.
_PIECE = re.compile(rb"[^\n]*\n|[^\n]+")
_RANK = re.compile(rb"\[(\d{1,6})\] ")
LONGEST_PREFIX = 9
"""Bytes of the longest prefix that a rank's line can have."""
LONGEST_BEGINNING = LONGEST_END = 2000
"""Bytes of a line that are read, of its beginning and of its end: a progress bar is one line, and its end counts."""
LAUNCHER_PREFIX = b"[launcher] "
_VERDICT_PREFIX = b"[hvdcloud] rank "
_ABORTS = (b"terminate called after throwing an instance of 'gloo::", b"  what():  [/tmp/horovod/")
_HOROVOD_ERROR = re.compile(rb"\[2[\d :.\-]{25}: [EF] /tmp/horovod/")
_DATED = 48
"""Bytes after which a line that begins with a date is known to be Horovod's or not."""
_ALONE = 3
"""After this many telling lines of another worker, with none of the speaker's between them, it has taken over."""


def rank_and_text(line: bytes) -> tuple[int, bytes] | None:
    """Which rank's line it is, and the line without that; None: no rank's."""
    match = _RANK.match(line)
    return (int(match[1]), line[match.end() :]) if match else None


def counted(line: str) -> dict[str, tuple[int, int | None]]:
    """The epoch and the step that a line says it is at, and of how many if it says so."""
    found = {}
    lower = line.lower()
    for unit, (needed, pattern) in _UNITS.items():
        match = pattern.search(line) if any(letters in lower for letters in needed) else None
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
    lower = line.lower()
    for name, (letters, pattern) in _NAMED.items():
        if letters in lower and (match := pattern.search(line)) and (value := _number(match[1])) is not None:
            values[name] = value / 100 if match[2] else value
    for match in _RATE_UNIT.finditer(line) if "/" in lower or "per" in lower else ():
        found = _RATE_NUMBER.search(line, max(0, match.start() - _LONGEST_RATE), match.start())
        if found is None:
            continue
        if (rate := _number(found[1])) is not None:
            unit = match[1].lower().rstrip("s")
            values["images/s" if unit == "img" else f"{unit}s/s"] = rate
        break
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
        self._beginning = b""
        self._ending = b""
        self._length = 0
        """Of the line that has no end yet."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that end in the next piece, which may begin and end anywhere; without their newlines."""
        start = 0
        while (newline := data.find(b"\n", start)) >= 0:
            self._take(data, start, newline)
            yield self._line()
            start = newline + 1
        self._take(data, start, len(data))

    def rest(self) -> bytes:
        """What comes after the last newline."""
        return self._line() if self._length else b""

    def _take(self, data: bytes, start: int, end: int) -> None:
        room = LONGEST_BEGINNING - len(self._beginning)
        self._beginning += data[start : min(end, start + room)]
        if end > start + room:
            self._ending = (self._ending + data[max(start + room, end - LONGEST_END) : end])[-LONGEST_END:]
        self._length += end - start

    def _line(self) -> bytes:
        is_whole = self._length <= len(self._beginning) + len(self._ending)
        line = self._beginning + (b"" if is_whole else b" ... ") + self._ending
        self.end += self._length + 1
        self._beginning, self._ending, self._length = b"", b"", 0
        return line


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


class LineFilter:
    """Lets some lines of a log through, each as soon as its beginning tells which it is.

    A line that has no end yet, such as a progress bar, goes through piece by piece as it came.
    """

    def __init__(self) -> None:
        self._start = b""
        """The beginning of a line, while it may still become either."""
        self._shown: bool | None = None
        """Whether the unfinished line is shown; None: not known yet."""

    def shows(self, line: bytes) -> bool | None:
        """Whether to show a line that begins so; None: more of it has to be seen."""
        raise NotImplementedError

    def feed(self, data: bytes) -> bytes:
        """What to show of the next piece of the log."""
        shown = bytearray()
        for piece in _PIECE.findall(data):
            line = self._start + piece
            if self._shown is None:
                self._shown = self.shows(line)
                if self._shown is None and not line.endswith(b"\n"):
                    self._start = line
                    continue
            self._start = b""
            if self._shown is not False:
                shown += line
            if line.endswith(b"\n"):
                self._shown = None
        return bytes(shown)


class RankLines(LineFilter):
    """Lets the lines of one rank through."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._prefix = b"[%d] " % rank

    def shows(self, line: bytes) -> bool | None:
        """Whether the line begins with `[RANK] `."""
        return line.startswith(self._prefix) or (None if self._prefix.startswith(line) else False)


class JobLines(LineFilter):
    """Lets through what the job itself says: neither the launcher's lines nor what Horovod prints in an elastic run
    whenever nodes come and go; a rank's end, which the head notes, is told with its cause when the run has ended."""

    def __init__(self, *, elastic: bool) -> None:
        super().__init__()
        self._elastic = elastic

    def shows(self, line: bytes) -> bool | None:
        """Whether the line is the job's own."""
        rank = _RANK.match(line)
        text = line[rank.end() :] if rank else line
        hidden = (LAUNCHER_PREFIX, _VERDICT_PREFIX) if rank is None else _ABORTS if self._elastic else ()
        if text.startswith(hidden) or (rank and self._elastic and _HOROVOD_ERROR.match(text)):
            return False
        if line.endswith(b"\n"):
            return True
        dated = rank and self._elastic and b"[2".startswith(text[:2]) and len(text) < _DATED
        begins = any(start.startswith(text) for start in hidden) or (not rank and len(line) < LONGEST_PREFIX)
        return None if dated or (begins and line[:1] == b"[") else True
