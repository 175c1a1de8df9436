"""Our horovodrun starts commands, prints what they say as Horovod does, and ends them when it is told to."""

from __future__ import annotations

import io
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.horovod_launcher import after_our_horovodrun


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What horovodrun's gloo_run.py starts ranks with."""
    for runner in after_our_horovodrun(tmp_path, monkeypatch):
        yield runner.gloo_run.safe_shell_exec


def test_all_that_a_rank_prints_arrives_before_its_exit_code(shell: Any) -> None:
    out, errors = io.StringIO(), io.StringIO()
    command = "head -c 300000 /dev/zero | tr '\\0' x; echo \"$WHERE\" >&2; exit 3"
    assert shell.execute(command, env={"WHERE": "here"}, stdout=out, stderr=errors, index=1) == 3
    assert out.getvalue().count("x") == 300_000
    assert errors.getvalue() == "[1]<stderr>:here\n"


def test_a_rank_that_a_signal_ended_has_the_exit_code_of_a_shell(shell: Any) -> None:
    assert shell.execute("kill -KILL $$", stdout=io.StringIO(), stderr=io.StringIO()) == 128 + signal.SIGKILL


def test_a_rank_ends_when_an_event_says_so(shell: Any) -> None:
    class Output(io.StringIO):
        def write(self, text: str) -> int:
            failed.set()
            return super().write(text)

    failed = threading.Event()
    code = shell.execute("echo started; sleep 600", stdout=Output(), stderr=io.StringIO(), events=[failed])
    assert code == 128 + signal.SIGTERM
