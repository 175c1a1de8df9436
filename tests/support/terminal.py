"""A terminal in which hvdcloud runs, as a person sees it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pyte

from tests.support.harness import DEADLINE, HVDCLOUD, Project

COLUMNS, ROWS = 80, 24
COLOUR = re.compile(rb"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[;m]")
"""A colour of the text or the background, other than the terminal's own."""


class Terminal:
    """A terminal with hvdcloud in it: what it shows, and its keys."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int, size: tuple[int, int]) -> None:
        self.process = process
        self._descriptor = descriptor
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self.printed = b""
        """Everything so far."""

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)

    @property
    def settings(self) -> list[Any]:
        """What the terminal does with keys, as termios has it."""
        return termios.tcgetattr(self._descriptor)

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, shown: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + DEADLINE
        while not shown(self.text):
            assert time.monotonic() < deadline, self.text
            if select.select([self._descriptor], [], [], 0.2)[0]:
                assert self._read(), f"it has ended:\n{self.text}"

    def end(self, *, seconds: float = DEADLINE) -> tuple[int, bytes]:
        """The program's exit code, and everything that it printed."""
        deadline = time.monotonic() + seconds
        while select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
            if not self._read():
                return self.process.wait(timeout=DEADLINE), self.printed
        raise AssertionError(f"it is still there after {seconds:.0f} s:\n{self.text}")

    def close(self) -> None:
        """Close the window."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _read(self) -> bytes:
        try:
            data = os.read(self._descriptor, 1 << 16)
        except OSError:  # Linux says so when nothing has the terminal open any more.
            return b""
        self.printed += data
        self._stream.feed(data)
        return data


def printed_on_a_terminal(
    argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str], size: tuple[int, int] = (COLUMNS, ROWS)
) -> tuple[int, bytes]:
    """How a command ended whose streams are all a terminal, and what it printed there."""
    with terminal_with(argv, cwd=cwd, environ=environ, size=size) as opened:
        return opened.end()


@contextmanager
def terminal(project: Project, *args: str) -> Iterator[Terminal]:
    environ = {**project.env(), "TERM": "xterm-256color"}
    with terminal_with([*HVDCLOUD, *args], cwd=project.folder, environ=environ) as opened:
        yield opened


@contextmanager
def terminal_with(
    argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str], size: tuple[int, int] = (COLUMNS, ROWS)
) -> Iterator[Terminal]:
    """A terminal with a program in it, which is killed if it still runs at the end."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    process = subprocess.Popen(
        argv, cwd=cwd, env={**os.environ, **environ}, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    opened = Terminal(process, ours, size)
    try:
        yield opened
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        opened.close()
