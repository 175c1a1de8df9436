"""A process id that was written down, and that another process has by now; and when a process has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hvdcloud.errors import NodeError
from hvdcloud.node import paths, processes
from hvdcloud.node.files import Lock
from hvdcloud.node.records import active, state
from hvdcloud.node.run import control
from hvdcloud.runs.state import RunState
from tests.support.nodes import RUN

pytestmark = pytest.mark.usefixtures("node_root")


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """Has the id that an earlier process of a run had."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def held(path: Path, *, pid: int) -> Lock:
    """A lock whose holder had started before the process that has its id now."""
    lock = Lock(path)
    assert lock.acquire({"run": RUN, "pid": pid, "started": 17.25})
    return lock


def test_a_process_is_known_by_what_it_wrote_of_itself(stranger: subprocess.Popen[bytes]) -> None:
    own = processes.describe_self()

    assert (found := processes.described(own)) is not None
    assert found.pid == os.getpid()
    assert processes.described({**own, "pid": stranger.pid}) is None
    assert processes.described({**own, "started": own["started"] - 0.01}) is None
    assert processes.described({}) is None


def test_an_agent_does_not_kill_what_has_its_predecessors_id(
    stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "KILL_SECONDS", 0.3)
    lock = held(paths.agent_lock(RUN), pid=stranger.pid)

    with pytest.raises(NodeError, match="does not end"):
        active.take_over(paths.agent_lock(RUN), what=f"another agent of run {RUN}")

    assert stranger.poll() is None
    lock.release()


def test_stop_does_not_signal_what_has_the_supervisors_id(stranger: subprocess.Popen[bytes]) -> None:
    lock = held(paths.supervisor_lock(), pid=stranger.pid)
    paths.run_dir(RUN).mkdir(parents=True)
    assert state.write(RunState(run=RUN, cluster="digits", state="running", np=1, controller="gloo", nodes=["n0"]))

    control.stop(RUN)

    assert stranger.poll() is None
    lock.release()


def test_a_process_that_only_waits_to_be_reaped_is_not_waited_for() -> None:
    """In a container whose first process reaps late, or never, `stop` ends all the same."""
    # A shell may reap it before it waits itself.
    reaps_nothing = "import os, time; pid = os.fork() or os._exit(0); print(pid, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-ISc", reaps_nothing], stdout=subprocess.PIPE) as parent:
        try:
            assert parent.stdout is not None
            ended = psutil.Process(int(parent.stdout.readline()))
            assert processes.wait_gone([ended], seconds=10.0)
            assert ended.status() == psutil.STATUS_ZOMBIE
        finally:
            parent.kill()
