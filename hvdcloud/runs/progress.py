"""Where a run is and what numbers it has printed, and why it failed, read from what its ranks print. Pure.

Frameworks and scripts write it each in their own way; those that are known count, and where none is recognised nothing
is said.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from hvdcloud.runs.failure import Failure, explain
from hvdcloud.runs.log_lines import LAUNCHER_PREFIX, Lines, counted, numbers_in, rank_and_text
from hvdcloud.runs.state import RunState

_COLOUR = re.compile(rb"\x1b\[[0-9;:]{0,64}m")
_KEPT_LINES = 20_000
"""From the log's end, of all ranks: a traceback with what the other ranks print until the run has ended."""
_LAUNCHER_LINES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run is."""

    unit: str
    """epoch | step"""
    number: int
    """The last that was seen."""
    total: int | None
    """Of how many, if it says so."""


class LogReader:
    """What a log says of its run: the last line, how far it is, the newest numbers.

    In an elastic run rank 0 may move from one worker to another; the lines of every rank are read.
    """

    def __init__(self, *, elastic: bool) -> None:
        self.last_line = ""
        self.metrics: dict[str, float] = {}
        """The newest of each number: `loss`, `images/s`."""
        self._elastic = elastic
        self._positions: dict[str, Position] = {}
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=_KEPT_LINES)
        """The last lines of ranks, each with its rank, until it is known whether the run fails."""
        self._launcher: deque[bytes] = deque(maxlen=_LAUNCHER_LINES)
        self._lines = Lines()

    def feed(self, data: bytes) -> None:
        """Take a piece of the log, wherever it is cut."""
        for line in self._lines.feed(data):
            self.take(line)

    def take(self, line: bytes) -> dict[str, float]:
        """Take a line; returns the numbers that it names."""
        values: dict[str, float] = {}
        found = rank_and_text(line)
        if found is None:
            if line.startswith(LAUNCHER_PREFIX):
                self._launcher.append(line.removeprefix(LAUNCHER_PREFIX))
            return values
        rank, raw = found
        plain = _COLOUR.sub(b"", raw)
        # What is left of a line that was drawn over itself, as a progress bar does.
        self._recent.append((rank, plain.rstrip(b"\b\r").rpartition(b"\r")[2]))
        if rank != 0 and not self._elastic:
            return values
        text = plain.decode(errors="backslashreplace")
        self.last_line = text.strip() or self.last_line
        for part in text.split("\r"):
            for unit, (number, total) in counted(part).items():
                # Not every line says of how many.
                known = self._positions.get(unit)
                total = total or (known.total if known else None)
                self._positions[unit] = Position(unit=unit, number=number, total=total)
            values |= numbers_in(part)
        self.metrics |= values
        return values

    @property
    def position(self) -> Position | None:
        """The last epoch, or where none are counted the last step; None: neither was recognised."""
        return self._positions.get("epoch") or self._positions.get("step")

    def failure(self, state: RunState) -> Failure | None:
        """Why the run failed, if it did; the log is known up to its end."""
        if state.result != "failed":
            return None
        ranks: dict[int, list[tuple[int, str]]] = {}
        for number, (rank, line) in enumerate(self._recent):
            ranks.setdefault(rank, []).append((number, line.decode(errors="backslashreplace")))
        launcher = [line.decode(errors="backslashreplace") for line in self._launcher]
        return explain(state, ranks=ranks, launcher=[line for line in launcher if line.strip()])
