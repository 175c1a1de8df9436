"""A terminal in which hvdcloud runs, as a person sees it."""

from __future__ import annotations

import os
import pty
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

import pyte

from tests.support.harness import HVDCLOUD, Project

COLUMNS, ROWS = 80, 24


class Terminal:
    """A terminal with hvdcloud in it: what it shows, and its keys."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)

    def press(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def wait_for(self, shown: Callable[[str], bool], *, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not shown(self.text):
            assert time.monotonic() < deadline, self.text
            if select.select([self._descriptor], [], [], 0.2)[0]:
                try:
                    data = os.read(self._descriptor, 1 << 16)
                except OSError:
                    data = b""
                assert data, f"it has ended:\n{self.text}"
                self._stream.feed(data)


def printed_on_a_terminal(
    argv: Sequence[str], *, cwd: Path, environ: Mapping[str, str], seconds: float = 60.0
) -> tuple[int, bytes]:
    """How a command ended whose streams are all a terminal, and what it printed there."""
    ours, theirs = _opened()
    inherited = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR"}}
    process = subprocess.Popen(
        argv, cwd=cwd, env={**inherited, **environ}, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    printed = b""
    deadline = time.monotonic() + seconds
    try:
        while True:
            assert select.select([ours], [], [], max(0.0, deadline - time.monotonic()))[0], printed
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # Linux says so when nothing has the terminal open any more.
                return process.wait(timeout=seconds), printed
            if not data:
                return process.wait(timeout=seconds), printed
            printed += data
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def _opened() -> tuple[int, int]:
    """Both ends of a terminal of our size."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    return ours, theirs


@contextmanager
def terminal(project: Project, *args: str) -> Iterator[Terminal]:
    ours, theirs = _opened()
    process = subprocess.Popen(
        [*HVDCLOUD, *args],
        cwd=project.folder,
        env={**project.env(), "TERM": "xterm-256color"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        os.close(ours)
