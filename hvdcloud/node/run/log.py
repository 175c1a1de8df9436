"""The run's log: the bytes that every rank wrote, line by line with its rank, under either launcher."""

from __future__ import annotations

import binascii
import contextlib
import os
import re
import time
from dataclasses import dataclass, field
from pathlib import Path

FRAME_BYTES = 3000
"""What a rank writes at most in one frame, which a pipe then takes whole (PIPE_BUF)."""
# Open MPI drops what does not fit into its buffer with a prefix for each line, which it does where lines are as long as
# their prefix.
_FRAME = b"hvdcloud-output-base64: "
_TAG = re.compile(rb"\[(?:\d+,)?(\d+)\]<std(out|err)>:")
_LAUNCHER = (b"[launcher] ", b"")
_MAX_HELD = 1 << 20
QUIET_SECONDS = 0.1
"""How long a line that is drawn over itself, as progress bars are, waits for more."""
PARTIAL_SECONDS = 1.0
"""How long another partial line has not grown when it is shown: its other half may be on its way, and what another rank
writes meanwhile would be put between them."""
_Stream = tuple[bytes, bytes]
"""The prefix of its lines in the log, and which of a rank's two outputs it is."""


def framed(data: bytes) -> bytes:
    """What a rank wrote as one line of ASCII: launchers decode, cut and number the lines of their ranks."""
    return _FRAME + binascii.b2a_base64(data)


@dataclass(slots=True)
class _Line:
    """A line that has no end yet, as far as it is not in the log."""

    began: float
    grew: float = 0.0
    text: bytearray = field(default_factory=bytearray)


class Normaliser:
    """Turns what a launcher prints into lines that begin with `[RANK] `, and are else the bytes that the rank wrote.

    Gloo's launcher writes `[0]<stdout>:text`, Open MPI's `[1,0]<stdout>:text`, also within a line, where it got that in
    pieces; a line without either comes from the launcher itself and gets `[launcher] `. Each stream's line is put
    together by itself: no line swallows another one's. Pure.
    """

    def __init__(self) -> None:
        self.hears_launcher = True
        """Whether lines are taken that no rank has written."""
        self._held = b""
        """A line of the launcher's output that has no end yet."""
        self._frames: dict[_Stream, bytes] = {}
        """The frames that have no end yet."""
        self._lines: dict[_Stream, _Line] = {}
        self._open: _Stream | None = None
        """Whose line has no end yet in the log."""
        self._drawn = False
        """Whether that line is drawn over itself, as progress bars are."""

    @property
    def holding(self) -> bool:
        """Whether a partial line waits for its end."""
        return bool(self._lines)

    def feed(self, data: bytes, *, now: float = 0.0) -> bytes:
        """What can be written now; a line without its end is kept for a while."""
        *lines, self._held = (self._held + data).split(b"\n")
        ready = b"".join([self._hear(line + b"\n", now) for line in lines])
        if len(self._held) > _MAX_HELD:
            held, self._held = self._held, b""
            ready += self._hear(held, now)
        return ready

    def flush(self, *, now: float = float("inf")) -> bytes:
        """The partial lines that have not grown for a moment, or are drawn over themselves."""
        ready = b""
        for stream, line in list(self._lines.items()):
            shown = line.began + QUIET_SECONDS if b"\r" in line.text else line.grew + PARTIAL_SECONDS
            if now >= shown:
                ready += self._part(stream, bytes(self._lines.pop(stream).text))
        return ready

    def close(self) -> bytes:
        """All that is left, ended with a newline."""
        left, self._held = self._held, b""
        ready = self._hear(left, 0.0)
        for stream, frame in self._frames.items():
            ready += self._say(stream, frame, 0.0)
        self._frames.clear()
        return ready + self.end_lines()

    def end_lines(self) -> bytes:
        """What there is of every partial line, ended with a newline."""
        return self.flush() + self._end()

    def _hear(self, line: bytes, now: float) -> bytes:
        """A line of the launcher's output, with what several streams said."""
        launcher, *tagged = _TAG.split(line)
        ready = self._put_together(_LAUNCHER, launcher, now) if launcher and self.hears_launcher else b""
        for rank, output, text in zip(tagged[::3], tagged[1::3], tagged[2::3], strict=True):
            ready += self._put_together((b"[%b] " % rank, output), text, now)
        return ready

    def _put_together(self, stream: _Stream, text: bytes, now: float) -> bytes:
        """The next of one stream, as the launcher got it."""
        said = self._frames.pop(stream, b"") + text
        if said.endswith(b"\n"):
            return self._say(stream, _unframed(said), now)
        if _FRAME.startswith(said[: len(_FRAME)]):
            self._frames[stream] = said
            return b""
        return self._say(stream, said, now)

    def _say(self, stream: _Stream, data: bytes, now: float) -> bytes:
        """The next of one stream."""
        whole, newline, rest = data.rpartition(b"\n")
        ready = b""
        if newline:
            if (line := self._lines.pop(stream, None)) is not None:
                whole = bytes(line.text) + whole
            ready = self._begin(stream) + whole.replace(b"\n", b"\n" + stream[0]) + newline
            self._open = None
        if rest:
            line = self._lines.setdefault(stream, _Line(began=now))
            line.text += rest
            line.grew = now
            if len(line.text) > _MAX_HELD:
                ready += self._part(stream, bytes(self._lines.pop(stream).text))
        return ready

    def _part(self, stream: _Stream, text: bytes) -> bytes:
        """A part of a line that has no end yet. Where two ranks draw in turn, neither begins another line."""
        drawn = b"\r" in text
        ready = self._begin(stream, end=b"\r" if drawn and self._drawn else b"\n") + text
        self._open, self._drawn = stream, drawn
        return ready

    def _begin(self, stream: _Stream, *, end: bytes = b"\n") -> bytes:
        return b"" if self._open == stream else self._end(end) + stream[0]

    def _end(self, end: bytes = b"\n") -> bytes:
        ended, self._open = self._open is not None, None
        return end if ended else b""


def _unframed(line: bytes) -> bytes:
    """What a rank wrote; a line that is no frame, or a damaged one, is as it is."""
    with contextlib.suppress(binascii.Error):
        return binascii.a2b_base64(line[len(_FRAME) :]) if line.startswith(_FRAME) else line
    return line


class RunLog:
    """The file of a run's log, appended to. A write that fails is remembered, never raised."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._normaliser = Normaliser()
        self.failure: OSError | None = None
        """Why a line could not be written: a full disk, mostly."""

    @property
    def holding(self) -> bool:
        """Whether a partial line waits for its end; `quiet` writes it."""
        return self._normaliser.holding

    def output(self, data: bytes) -> bytes:
        """Take what the launcher wrote; returns what of it is in the log now."""
        return self._write(self._normaliser.feed(data, now=time.monotonic()))

    def ignore_launcher(self) -> None:
        """Take no more lines that no rank has written."""
        self._normaliser.hears_launcher = False

    def quiet(self) -> bytes:
        """Show partial lines too, where nothing came for a moment; returns what is in the log now."""
        return self._write(self._normaliser.flush(now=time.monotonic()))

    def note(self, text: str) -> None:
        """A line of our own."""
        lines = b"".join(b"[hvdcloud] %b\n" % line for line in text.encode(errors="backslashreplace").split(b"\n"))
        self._write(self._normaliser.end_lines() + lines)

    def close(self) -> None:
        self._write(self._normaliser.close())
        os.close(self._descriptor)

    def _write(self, data: bytes) -> bytes:
        view = memoryview(data)
        while view and self.failure is None:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                self.failure = error
        return data
