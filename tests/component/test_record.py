"""A command in a terminal of its own, as tools/record.py runs it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import record


def test_a_command_runs_in_a_terminal_of_the_size_asked_for(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.stdout.isatty(), *os.get_terminal_size()); sys.exit(3)"
    recording, code = record.record(
        [sys.executable, "-c", program], folder=tmp_path, columns=50, rows=7, limit_seconds=60
    )
    assert code == 3
    assert b"True 50 7" in b"".join(data for _, data in recording.chunks)


def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        record.record(["sleep", "600"], folder=tmp_path, columns=50, rows=7, limit_seconds=0.2)
