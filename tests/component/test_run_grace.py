"""The end of a run on request: what a person's program does between SIGTERM and SIGKILL, and what is kept of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, node_cluster, wait_gone

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


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


def start(cluster: NodeCluster, command: str | list[str], *, grace: float = 30.0) -> None:
    cluster.grace = grace
    cluster.start_run(command)
    cluster.wait_for_log("at work", times=2)


def saved(cluster: NodeCluster) -> set[str]:
    """What is in the bucket of what was saved at the end."""
    return {path.name for path in cluster.bucket.rglob("last-*.pt")}


def pids(cluster: NodeCluster) -> list[int]:
    found = [path.name for name in cluster.names for path in cluster.root(name).rglob("checkpoints/*/pid-*")]
    return [int(name[4:]) for name in found]


def words(cluster: NodeCluster, text: str) -> list[str]:
    """The log's lines with a text, sorted."""
    return sorted(line for line in cluster.log().splitlines() if text in line)


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_that_saves_when_it_is_stopped_is_told_once_and_has_time(cluster: NodeCluster, code: int) -> None:
    start(cluster, saves(7, code=code))

    state = cluster.verb("n0", "stop", RUN)

    assert (state["result"], state["exit_code"]) == ("stopped", None)
    assert words(cluster, "told to end") == ["[0] told to end", "[1] told to end"], "each rank once"
    assert words(cluster, "saved") == ["[0] saved", "[1] saved"], "the one that saves is not ended for the other's end"
    assert saved(cluster) == {"last-0.pt", "last-1.pt"}
    assert "[hvdcloud] waiting up to 30 s (run.grace) for the ranks to save and end" in cluster.log()
    wait_gone(pids(cluster))


def test_run_grace_is_how_long_a_program_has(cluster: NodeCluster) -> None:
    start(cluster, saves(600), grace=3.0)
    began = time.monotonic()

    cluster.verb("n0", "stop", RUN)

    assert time.monotonic() - began >= 3.0
    assert saved(cluster) == {"last-1.pt"}
    assert "[hvdcloud] ranks that had not ended after 3 s (run.grace) were killed" in cluster.log()
    wait_gone(pids(cluster))


def test_who_asks_again_waits_too_and_cuts_nothing_short(cluster: NodeCluster) -> None:
    start(cluster, saves(4))
    first = cluster.start("n0", "stop", RUN)
    cluster.wait_for_log("told to end", times=2)

    assert cluster.verb("n0", "stop", RUN)["result"] == "stopped"

    first.communicate(timeout=60)
    assert len(words(cluster, "told to end")) == 2
    assert saved(cluster) == {"last-0.pt", "last-1.pt"}


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
    wait_gone(pids(cluster))


def test_helpers_of_a_program_that_saves_are_left_alone_until_it_has(cluster: NodeCluster) -> None:
    helper = "import subprocess; helper = subprocess.Popen(['sleep', '600'])\n"
    script = helper + saves(2).replace("sys.exit", "print('helper', helper.poll(), flush=True); sys.exit")
    start(cluster, script)

    cluster.verb("n0", "stop", RUN)

    assert words(cluster, "helper") == ["[0] helper None", "[1] helper None"], "a data loader's workers, for example"


def test_a_rank_that_fails_ends_the_others_without_the_grace() -> None:
    script = saves(600) + 'if rank == "1" and len(list(folder.glob("pid-*"))) == 2:\n        sys.exit(3)'
    script = script.replace("    time.sleep(0.1)\nif", "    time.sleep(0.1)\n    if")
    with node_cluster(nodes=1) as cluster:
        cluster.prepare([sys.executable, "-c", script], slots=2)
        cluster.launch(slots=2)
        cluster.wait_for_log("at work", times=2)

        state = cluster.wait_done()

        assert (state["result"], state["exit_code"]) == ("failed", 3)
        assert words(cluster, "told to end") == ["[0] told to end"], "by the launcher, and not by the agent again"


def test_a_lost_supervisor_does_not_cut_the_grace_short(cluster: NodeCluster) -> None:
    start(cluster, saves(4))
    stopping = cluster.start("n0", "stop", RUN)
    cluster.wait_for_log("told to end", times=2)
    os.kill(cluster.supervisor(), signal.SIGKILL)
    stopping.communicate(timeout=60)
    until(lambda: "last-1.pt" in saved(cluster), what="what was saved")
    wait_gone(pids(cluster))
