"""Runs a command and takes the time: as a whole, and of what it says about itself on the way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

MARK = re.compile(r"bench-mark (\S+) (\d+\.\d+)")
"""What the job and the scripts print: a name, and seconds since 1970 on the clock that all of them share."""
ENDING_SECONDS = 60


class BenchError(Exception):
    """What keeps the benchmark from measuring; the message says what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of a command."""

    seconds: float
    marks: Mapping[str, float]
    """Name → seconds since the command was started."""
    lines: Sequence[tuple[float, str]]
    """Everything it printed, each line with the seconds since the start at which it arrived."""
    out: str
    """Standard output alone."""

    @property
    def text(self) -> str:
        """Everything it printed."""
        return "\n".join(line for _, line in self.lines)


@dataclass(slots=True)
class _Listener:
    """Reads a stream of a process as it comes."""

    started: float
    lines: list[tuple[float, str]] = field(default_factory=list)

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append((time.monotonic() - self.started, line.rstrip("\n")))


def run(
    argv: Sequence[str | Path], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, limit: float = 300
) -> Sample:
    """Run a command to its end.

    Args:
        limit: seconds after which it is ended.

    Raises:
        BenchError: it failed or took too long.
    """
    # The hvdcloud configuration of the user who runs the benchmark must not configure what is measured.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HVDCLOUD_")}
    epoch, started = time.time(), time.monotonic()
    process = subprocess.Popen(
        [str(word) for word in argv],
        cwd=cwd,
        env={**inherited, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        # Ctrl-C is for the benchmark, which then ends the command and cleans up after it.
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = _Listener(started), _Listener(started)
    readers = [
        threading.Thread(target=listener.read, args=[stream])
        for listener, stream in ((out, process.stdout), (err, process.stderr))
    ]
    for reader in readers:
        reader.start()
    try:
        code: int | None = process.wait(timeout=limit)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        seconds = time.monotonic() - started
        _end(process)
        for reader in readers:
            reader.join()
    lines = sorted([*out.lines, *err.lines])
    sample = Sample(
        seconds=seconds,
        marks={found[1]: float(found[2]) - epoch for _, line in lines if (found := MARK.search(line)) is not None},
        lines=lines,
        out="\n".join(line for _, line in out.lines),
    )
    if code != 0:
        how = f"ended with exit code {code}" if code is not None else f"took more than {limit:.0f} s"
        tail = "\n".join(sample.text.splitlines()[-20:])
        raise BenchError(f"`{' '.join(map(str, argv))}` {how}:\n{tail}")
    return sample


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def output(*argv: str | Path) -> str:
    """What a short command prints; empty if it fails or is not there."""
    try:
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
