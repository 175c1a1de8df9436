"""The end of a run on request: what a person's program does between SIGTERM and SIGKILL, and what is kept of it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, wait_gone

SAVES = """
import os, pathlib, signal, sys, time
rank = os.environ["HOROVOD_RANK"]
folder = pathlib.Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
def save(number, frame):
    print("told to end", flush=True)
    time.sleep(SECONDS if rank == "0" else 0)
    (folder / f"last-{rank}.pt").write_text("weights")
    print("saved", flush=True)
    sys.exit(CODE)
signal.signal(signal.SIGTERM, save)
(folder / f"pid-{os.getpid()}").touch()
print("at work", flush=True)
while True:
    time.sleep(0.1)
"""
"""Saves once more when it is told to end; on rank 0 that takes a while."""


def saves(seconds: float, *, code: int = 0) -> str:
    return SAVES.replace("SECONDS", str(seconds)).replace("CODE", str(code))


def start(cluster: NodeCluster, command: str | list[str], *, grace: float = 30.0) -> None:
    cluster.grace = grace
    cluster.start_run(command)
    cluster.wait_for_log("at work", times=2)


def saved(cluster: NodeCluster) -> set[str]:
    """What is in the bucket of what was saved at the end."""
    return {path.name for path in cluster.bucket.rglob("last-*.pt")}


def words(cluster: NodeCluster, text: str) -> list[str]:
    """The log's lines with a text, sorted."""
    return sorted(line for line in cluster.log().splitlines() if text in line)


@pytest.mark.parametrize("code", [0, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_program_that_saves_when_it_is_stopped_is_told_once_and_has_time(cluster: NodeCluster, code: int) -> None:
    start(cluster, saves(7, code=code))

    state = cluster.verb("n0", "stop", RUN)

    assert (state["result"], state["exit_code"]) == ("stopped", None)
    assert words(cluster, "told to end") == ["[0] told to end", "[1] told to end"], "each rank once"
    assert words(cluster, "saved") == ["[0] saved", "[1] saved"], "the one that saves is not ended for the other's end"
    assert saved(cluster) == {"last-0.pt", "last-1.pt"}
    assert "[hvdcloud] waiting up to 30 s (run.grace) for the ranks to save and end" in cluster.log()
    wait_gone(cluster.user_pids())


@pytest.mark.parametrize(
    "shell",
    [
        pytest.param("cd . && python3 -c {script}; true", id="a shell that waits"),
        pytest.param("python3 -c {script} 2>&1 | tee copy", id="a pipeline"),
        pytest.param("python3 -c {script} & child=$!; trap 'kill $child' TERM; wait; wait", id="a trap"),
    ],
)
def test_a_program_below_a_shell_is_told_once(cluster: NodeCluster, shell: str) -> None:
    (cluster.base / "saves.py").write_text(saves(3))
    start(cluster, [shell.replace("-c {script}", str(cluster.base / "saves.py"))])

    cluster.verb("n0", "stop", RUN)

    assert words(cluster, "told to end") == ["[0] told to end", "[1] told to end"]
    assert words(cluster, "saved") == ["[0] saved", "[1] saved"]
    assert saved(cluster) == {"last-0.pt", "last-1.pt"}
    wait_gone(cluster.user_pids())


def test_a_lost_supervisor_does_not_cut_the_grace_short(cluster: NodeCluster) -> None:
    start(cluster, saves(4))
    stopping = cluster.start("n0", "stop", RUN)
    cluster.wait_for_log("told to end", times=2)
    os.kill(cluster.supervisor(), signal.SIGKILL)
    stopping.communicate(timeout=300)
    until(lambda: "last-1.pt" in saved(cluster), what="what was saved")
    wait_gone(cluster.user_pids())
