"""The lines of one rank, from a log that comes in pieces. Pure."""

from __future__ import annotations


class RankLines:
    """Lets the lines through that begin with `[RANK] `, as soon as their beginning is known.

    A line that has no end yet, such as a progress bar, goes through piece by piece as it came.

    Args:
        rank: whose lines.
    """

    def __init__(self, rank: int) -> None:
        self._prefix = b"[%d] " % rank
        self._start = b""
        """The beginning of a line, while it may still become either."""
        self._ours: bool | None = None
        """Whether the line that goes on is this rank's; None: not known yet."""

    def feed(self, data: bytes) -> bytes:
        """What of the next piece of the log is to be shown."""
        shown = bytearray()
        for piece in _lines(data):
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


def _lines(data: bytes) -> list[bytes]:
    """Pieces that end at a newline; a carriage return, at which `splitlines` would cut too, is part of its line."""
    lines = data.split(b"\n")
    return [*(line + b"\n" for line in lines[:-1]), *filter(None, lines[-1:])]
