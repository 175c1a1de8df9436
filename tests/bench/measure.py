"""Runs a command and takes the time."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ENDING_SECONDS = 60


class BenchError(Exception):
    """What keeps the benchmark from measuring; the message says what to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One run of a command."""

    seconds: float
    text: str
    """Everything it printed."""
    out: str
    """Standard output alone."""


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
    started = time.monotonic()
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
    how = ""
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        how = f"took more than {limit:.0f} s"
        _end(process)
        out, err = process.communicate()
    finally:
        seconds = time.monotonic() - started
        _end(process)
    if how or process.returncode != 0:
        tail = "\n".join((out + err).splitlines()[-20:])
        raise BenchError(f"`{' '.join(map(str, argv))}` {how or f'ended with exit code {process.returncode}'}:\n{tail}")
    return Sample(seconds=seconds, text=out + err, out=out)


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
        done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, timeout=300, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
