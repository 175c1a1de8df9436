"""The run's log: every line says which rank wrote it, with either launcher."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

_TAG = re.compile(rb"\[(?:\d+,)?(\d+)\]<std(out|err)>:")
_TAG_START = re.compile(rb"\[[\d,]{0,12}\]?(?:<[a-z]{0,6}>?)?\Z")
_HINT = b"]<std"
_LAUNCHER = b"[launcher] "
_MAX_HELD = 1 << 16
QUIET_SECONDS = 0.1
"""How long a partial line waits for its end."""


class Normaliser:
    """Turns the launchers' line prefixes into `[RANK] `.

    Gloo's launcher writes `[0]<stdout>:text`, Open MPI's `[1,0]<stdout>:text`; a line without either comes from the
    launcher itself and gets `[launcher] `. Two things are put right on the way: a rank's last line without a newline
    does not swallow another rank's next line, and a long line that Open MPI tagged in pieces is whole again.
    """

    def __init__(self) -> None:
        self._held = b""
        self._owner: bytes | None = None
        self._inside = False

    @property
    def holding(self) -> bool:
        """Whether a partial line waits for its end."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """What can be written now; a line without its end is kept for a while."""
        data = self._held + data
        end = data.rfind(b"\n") + 1
        self._held = data[end:]
        ready = self._lines(data[:end]) if end else b""
        if len(self._held) > _MAX_HELD:
            ready += self.flush()
        return ready

    def flush(self) -> bytes:
        """The partial line as it is now, except what may be the first part of a prefix."""
        held = self._held
        match = _TAG_START.search(held)
        keep = match.start() if match else len(held)
        self._held = held[keep:]
        return self._part(held[:keep]) if keep else b""

    def close(self) -> bytes:
        """All that is left, ended with a newline."""
        held, self._held = self._held, b""
        ready = self._part(held) if held else b""
        if self._inside:
            ready += b"\n"
            self._inside = False
        return ready

    def _lines(self, data: bytes) -> bytes:
        lines = data.split(b"\n")
        lines.pop()
        ready = []
        first = self._inside
        for line in lines:
            if not first and _HINT in line and (match := _TAG.match(line)):
                rest = line[match.end() :]
                if _HINT not in rest:
                    ready.append(b"[%b] %b\n" % (match[1], rest))
                    continue
            elif not first and _HINT not in line:
                ready.append(b"%b%b\n" % (_LAUNCHER, line))
                continue
            first = False
            ready.append(self._part(line))
            ready.append(b"\n")
            self._inside = False
        return b"".join(ready)

    def _part(self, text: bytes) -> bytes:
        """A piece of a line, possibly tagged in its middle; leaves `_inside` set."""
        ready = bytearray()
        position = 0
        for match in _TAG.finditer(text):
            ready += self._plain(text[position : match.start()])
            position = match.end()
            owner = match[0]
            after_return = match.start() > 0 and text[match.start() - 1] == 0x0D
            if self._inside and owner == self._owner and not after_return:
                continue
            if self._inside and not after_return:
                ready += b"\n"
            ready += b"[%b] " % match[1]
            self._owner = owner
            self._inside = True
        return bytes(ready + self._plain(text[position:]))

    def _plain(self, text: bytes) -> bytes:
        if not text:
            return b""
        if self._inside:
            return text
        self._inside = True
        self._owner = None
        return _LAUNCHER + text


class RunLog:
    """The file of a run's log, appended to. A write that fails is remembered, never raised."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._normaliser = Normaliser()
        self._grew_at = 0.0
        self.failure: OSError | None = None
        """Why a line could not be written: a full disk, mostly."""

    @property
    def holding(self) -> bool:
        """Whether a partial line waits for its end; `quiet` writes it."""
        return self._normaliser.holding

    def output(self, data: bytes) -> None:
        """What horovodrun wrote."""
        self._grew_at = time.monotonic()
        self._write(self._normaliser.feed(data))

    def quiet(self) -> None:
        """Show a partial line too, where nothing came for a moment."""
        if self.holding and time.monotonic() - self._grew_at >= QUIET_SECONDS:
            self._write(self._normaliser.flush())
            self._grew_at = time.monotonic()

    def note(self, text: str) -> None:
        """A line of our own."""
        lines = b"".join(b"[hvdcloud] %b\n" % line for line in text.encode(errors="backslashreplace").split(b"\n"))
        self._write(self._normaliser.close() + lines)

    def close(self) -> None:
        self._write(self._normaliser.close())
        os.close(self._descriptor)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and self.failure is None:
            try:
                view = view[os.write(self._descriptor, view) :]
            except OSError as error:
                self.failure = error
