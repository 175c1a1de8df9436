"""A cluster's lock between processes."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import UsageError


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


def _hold(name: str, held: Event, leave: Event) -> None:
    with ClusterState(name).lock("up"):
        held.set()
        leave.wait(30)


def test_two_commands_never_change_one_cluster_at_once() -> None:
    held, leave = multiprocessing.Event(), multiprocessing.Event()
    other = multiprocessing.Process(target=_hold, args=("digits", held, leave))
    other.start()
    try:
        assert held.wait(30)
        with pytest.raises(UsageError, match=f"`hvdcloud up` \\(process {other.pid}\\)"):
            ClusterState("digits").lock("down").__enter__()
        with ClusterState("other").lock("down"):
            pass
    finally:
        leave.set()
        other.join()
    with ClusterState("digits").lock("down"):
        pass


def test_a_killed_command_leaves_no_lock() -> None:
    program = (
        "import sys, time; from hvdcloud.cluster.state import ClusterState\n"
        "with ClusterState('digits').lock('up'): print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    with ClusterState("digits").lock("up"):
        pass
