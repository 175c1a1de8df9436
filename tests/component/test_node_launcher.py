"""Our horovodrun starts commands, prints what they say as Horovod does, and ends them when it is told to."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.horovod_launcher import after_our_horovodrun


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """`horovod.runner`, where connections that may be shared have their sockets in `tmp_path`."""
    monkeypatch.setenv("HVDCLOUD_SSH_SOCKETS", f"{tmp_path}/ssh-")
    yield from after_our_horovodrun(tmp_path, monkeypatch)


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


def test_a_reader_that_dies_ends_the_launcher_with_its_cause(
    shell: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    # Our stand-in for Horovod decodes as strictly as Horovod.
    shell.execute("printf 'caf\\351\\n'", stdout=io.StringIO(), stderr=io.StringIO(), index=0)
    assert ended == [1]
    assert "UnicodeDecodeError" in capsys.readouterr().err


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


def test_a_rank_that_asks_for_what_another_has_not_said_is_answered_when_that_has_been_said(runner: Any) -> None:
    request = runner.http.http_server.RendezvousHandler()
    heard: list[object] = []
    asks = threading.Thread(target=lambda: heard.append(request._get_value("global", "1")))
    asks.start()
    request._put_value("global", "0", b"another")
    asks.join(0.1)
    assert asks.is_alive()
    request._put_value("global", "1", b"address")
    asks.join(10)
    assert heard == [b"address"]
    assert request._get_value("global", "1") == b"address"


def test_what_no_rank_says_is_answered_in_the_end(runner: Any) -> None:
    assert runner.http.http_server.RendezvousHandler()._get_value("global", "1") is None


def test_a_rank_is_started_over_the_connection_that_is_just_being_made(runner: Any, tmp_path: Path) -> None:
    assert "HVDCLOUD_SSH_SOCKETS" not in os.environ
    for other in ("ssh-n1-2222.Xb3kq", "ssh-n10-2222"):
        (tmp_path / other).touch()
    threading.Timer(0.1, (tmp_path / "ssh-n1-2222").touch).start()
    began = time.monotonic()
    assert runner.gloo_run.get_remote_command("true", "n1", port=2222) == "ssh -p 2222 n1 true"
    assert (tmp_path / "ssh-n1-2222").exists()
    # A host that does not answer is for ssh to name; and no later rank waits.
    runner.gloo_run.get_remote_command("true", "n2", port=2222)
    assert time.monotonic() - began < 5
    again = time.monotonic()
    runner.gloo_run.get_remote_command("true", "n2", port=2222)
    assert time.monotonic() - again < 0.25
