"""Ranks that hang and ranks that work without a word, on nodes without containers: who is ended, and what is said."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator

import pytest

from hvdcloud.node.run.stuck import BUSY_FACTOR, LEAST_PAUSE, ROUNDS
from tests.support.harness import until
from tests.support.nodes import RUN, NodeCluster, node_cluster

LIMIT = 1.5
# How long a rank works without a word: longer than an idle one would get, at which nodes look as often as at every
# other, and shorter than a busy one gets (run/stuck.py).
WORKS_SECONDS = 4.0
assert max(LIMIT, LIMIT / 2 + ROUNDS * LEAST_PAUSE) < WORKS_SECONDS < BUSY_FACTOR * LIMIT
WORKS = f"import os, sys, time\nrank, end = int(os.environ['HOROVOD_RANK']), time.monotonic() + {WORKS_SECONDS}\n"


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        cluster.stuck = LIMIT
        cluster.pace = {"beat": 0.1}
        yield cluster


def start(cluster: NodeCluster, script: str, *, command: str = "python") -> None:
    """Run a script of the project on both nodes; the second node's rank is 1."""
    python = [sys.executable] if command == "python" else [command, "-c"]
    argv = [*python, "train.py"] if command == "python" else [*python, f"{sys.executable} train.py; echo over"]
    code = {"train.py": textwrap.dedent(script)}
    assert all(answer.get("ok") for answer in cluster.prepare(argv, code=code))
    assert cluster.launch() == {"ok": True}


HANGS = {
    "a data loader": (
        """
        import os, queue, time
        def load():
            return queue.Queue().get()
        def train():
            time.sleep(600)
        load() if os.environ['HOROVOD_RANK'] == '1' else train()
        """,
        ["rank 0 is in train (train.py:6)", "rank 1 is in Queue.get (train.py:4)"],
    ),
    "a loader that looks every second whether its workers live": (
        """
        import multiprocessing, os, queue
        def work():
            multiprocessing.Event().wait()
        worker = multiprocessing.Process(target=work, daemon=True)
        worker.start()
        full = multiprocessing.Queue()
        while worker.is_alive():
            try:
                full.get(timeout=1.0)
            except queue.Empty:
                pass
        """,
        ["ranks 0 and 1 are in Queue.get (train.py:10)"],
    ),
    "a lock, while other threads wait for work": (
        """
        import threading
        for _ in range(3):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        threading.Lock().acquire() and threading.Barrier(2).wait()
        """,
        ["ranks 0 and 1 are in Barrier.wait (train.py:5)"],
    ),
}


@pytest.mark.parametrize("hang", HANGS)
def test_ranks_that_hang_end_the_run_and_it_says_where_they_are(cluster: NodeCluster, hang: str) -> None:
    script, places = HANGS[hang]
    start(cluster, script)

    state = cluster.wait_done(seconds=90)

    assert (state["result"], state["exit_code"]) == ("failed", None)
    assert state["reason"].startswith("stuck: nothing moved for ")
    for place in places:
        assert place in state["reason"]
    assert [group["ranks"] for group in state["stuck"]["groups"]]
    assert "[hvdcloud] stuck: nothing moved for " in cluster.log()
    kept = json.loads((cluster.run_dir() / "stacks.json").read_text())
    assert [each["rank"] for each in kept["ranks"]] == [0, 1]
    copy = cluster.bucket / "digits" / RUN / ".hvdcloud/stacks.json"
    assert until(lambda: copy.exists() and json.loads(copy.read_text()), what="the copy") == kept
    assert state["checkpoints"]["complete"]


# One rank is in native code that only counts, in one call without end: `all` consumes an iterator that takes nothing of
# Python. The other one waits.
SPIN = """\
import itertools, os, time
print('spins', flush=True)
os.environ['HOROVOD_RANK'] == '0' and time.sleep(600)
all(itertools.repeat(True))
"""


def test_a_rank_that_spins_gets_longer_and_is_found_too(cluster: NodeCluster) -> None:
    start(cluster, SPIN)
    state = cluster.wait_done(seconds=120)
    for place in ("rank 0 is in <module> (train.py:3)", "rank 1 is in <module> (train.py:4)"):
        assert place in state["reason"]
    assert state["stuck"]["seconds"] >= BUSY_FACTOR * LIMIT


def test_a_command_of_the_shell_that_starts_python_is_looked_through(cluster: NodeCluster) -> None:
    start(cluster, "import time\ntime.sleep(600)\n", command="/bin/sh")
    assert "ranks 0 and 1 are in <module> (train.py:2)" in cluster.wait_done(seconds=90)["reason"]


QUIET = {
    "prints and does not step": """
        while time.monotonic() < end:
            print('still there', flush=True)
            time.sleep(0.25)
        """,
    "writes checkpoints from another process": """
        import subprocess
        folder = os.environ['HVDCLOUD_CHECKPOINT_DIR']
        script = f'for i in 1 2 3 4 5 6; do echo $i >> {folder}/model.pt; sleep 0.5; done'
        subprocess.run(['/bin/sh', '-c', script], check=True)
        """,
    # What takes CPU time is done by one rank, and the other waits for it.
    "evaluates on one rank, while the other waits": """
        def evaluate(batch):
            time.sleep(0.01)
            return sum(range(20_000)) + batch
        def rank_zero_waits():
            time.sleep(max(0.0, end - time.monotonic()))
        batch = 0
        while rank and time.monotonic() < end:
            batch = evaluate(batch)
        rank_zero_waits()
        """,
    "compiles in other processes": """
        import subprocess
        while rank and time.monotonic() < end:
            subprocess.run([sys.executable, '-c', 'import time; time.sleep(0.2); sum(range(1_000_000))'], check=True)
        time.sleep(max(0.0, end - time.monotonic()))
        """,
    "is in one long native call": """
        import re
        # Each of them takes new memory, and none comes back to Python's own code.
        rank and list(iter(lambda end=end: bytearray(50_000_000) and time.monotonic() > end, True))
        time.sleep(max(0.0, end - time.monotonic()))
        """,
}


@pytest.mark.parametrize("work", QUIET)
def test_a_run_that_works_without_a_word_is_not_ended(cluster: NodeCluster, work: str) -> None:
    start(cluster, WORKS + textwrap.dedent(QUIET[work]))
    state = cluster.wait_done(seconds=120)
    assert (state["result"], state["reason"]) == ("succeeded", "")


def test_a_run_without_a_limit_is_not_watched(cluster: NodeCluster) -> None:
    cluster.stuck = None
    start(cluster, WORKS + "time.sleep(max(0.0, end - time.monotonic()))")
    assert cluster.wait_done(seconds=90)["result"] == "succeeded"


def test_stacks_are_taken_at_any_time_by_every_node(cluster: NodeCluster) -> None:
    cluster.stuck = None
    start(cluster, "import time\ndef train():\n    print('at work', flush=True)\n    time.sleep(600)\ntrain()\n")
    cluster.wait_for_log("at work", times=2)
    for rank, name in enumerate(cluster.names):
        (found,) = cluster.verb(name, "stacks", RUN)["ranks"]
        (process,) = found["processes"]
        main = [frame for frame in process["threads"][0]["frames"] if not frame.get("native")]
        assert (found["rank"], found["node"]) == (rank, name)
        assert [frame["name"] for frame in main] == ["train", "<module>"]
        assert any(frame.get("native") for frame in process["threads"][0]["frames"])
    assert cluster.state()["state"] == "running"
