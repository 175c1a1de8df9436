"""A node that is about to go: how its agent hears of it, and that nothing which is written there stays there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.node import machine
from hvdcloud.node.uploads import drain
from tests.standins.metadata.preemption import notices
from tests.support.harness import DEADLINE, until
from tests.support.nodes import RUN, NodeCluster, is_gone, wait_gone

# Every rank leaves a file that is whole, and continues.
TRAINS = """
import os, pathlib, time
folder = pathlib.Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
rank = os.environ["HOROVOD_RANK"]
(folder / f"first-{rank}.pt").write_bytes(b"weights")
print("at work", flush=True)
"""
# The same without an end, and without a start of Python.
FOREVER = (
    *("/bin/sh", "-c"),
    'printf weights > "$HVDCLOUD_CHECKPOINT_DIR/first-$HOROVOD_RANK.pt"; echo at work; exec sleep 600',
)


@pytest.fixture
def noticed() -> threading.Event:
    return threading.Event()


@pytest.mark.parametrize("status", [200, 503, 404, 0])
def test_the_notice_is_heard_also_of_a_metadata_server_in_trouble(
    noticed: threading.Event, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with notices(*[status] * 2 if status != 200 else []) as server:
        monkeypatch.setattr(machine, "facts", lambda: {"metadata": server.url})
        drain.watch(noticed.set)
        until(lambda: server.asked >= 3, what="three requests")
        assert not noticed.is_set()
        server.preempt()
        assert noticed.wait(60)
    assert server.wrong == []


def in_bucket(cluster: NodeCluster) -> set[str]:
    return {path.name for path in cluster.bucket.rglob("*.pt")}


def checkpoint_directory(cluster: NodeCluster, node: str) -> Path:
    return cluster.root(node) / "var/lib/hvdcloud/checkpoints" / RUN


def start(cluster: NodeCluster, command: Sequence[str] = FOREVER) -> None:
    """A run whose uploads do not come by themselves."""
    assert all(answer.get("ok") for answer in cluster.prepare(command))
    for node in cluster.names:
        cluster.change_spec(node, keep_every=600.0)
    assert cluster.launch() == {"ok": True}
    cluster.wait_for_log("at work", times=2)


def events(cluster: NodeCluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cluster.run_dir() / "events.jsonl").read_text().splitlines()]


def end_of_the_container(cluster: NodeCluster, node: str) -> subprocess.Popen[bytes]:
    """What the first process does before it ends everything."""
    return cluster.call(node, "hvdcloud.node.uploads.drain:upload_before_the_end")


def test_a_preempted_node_says_so_and_all_ranks_save_while_there_is_time_to_upload(cluster: NodeCluster) -> None:
    saves = """
import signal, sys
def save(*_):
    print("told to end", flush=True)
    time.sleep(3)
    (folder / f"last-{rank}.pt").write_bytes(b"the last weights")
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("at work", flush=True)
while True:
    time.sleep(0.1)
"""
    with notices() as server:
        cluster.has_metadata_server("n1", server.url)
        start(cluster, [sys.executable, "-c", TRAINS.replace('print("at work", flush=True)', saves)])
        # The first check, a second after the start, may have seen it; what comes later only this test sees.
        until(lambda: server.asked, what="the agent to watch")
        (checkpoint_directory(cluster, "n1") / "second-1.pt").write_bytes(b"more weights")
        server.preempt()
        cluster.wait_for_log("node n1 is being preempted: its checkpoints are being uploaded")
        cluster.wait_for_log("told to end", times=2)
        end_of_the_container(cluster, "n1").communicate(timeout=drain.LEAVE_SECONDS)
        assert "last-1.pt" in in_bucket(cluster), "the container waits for what is saved"
    state = cluster.wait_done()
    assert in_bucket(cluster) == {"first-0.pt", "first-1.pt", "second-1.pt", "last-0.pt", "last-1.pt"}
    log = cluster.log()
    assert log.count("told to end") == 2, "each rank once"
    assert re.search(r"waiting up to 1[12][.0-9]* s before their node goes for the ranks to save and end", log)
    assert log.count("is being preempted: its") == 1
    assert log.count("files are in the bucket") == 1, "said once, however often it uploads"
    found = [event for event in events(cluster) if event["event"] == "preempted"]
    assert [(event["node"], event["detail"]) for event in found] == [("n1", "preempted")]
    assert (state["result"], state["reason"]) == ("lost", "node n1 ended its part of the run: it is being preempted")
    assert state["checkpoints"]["complete"]


def test_a_file_that_is_being_written_is_waited_for(cluster: NodeCluster) -> None:
    with notices() as server:
        # A VM waits for longer.
        cluster.has_metadata_server("n1", server.url)
        start(cluster)
        with (checkpoint_directory(cluster, "n1") / "large-1.pt").open("wb", buffering=0) as file:
            file.write(b"half")
            ending = end_of_the_container(cluster, "n1")
            cluster.wait_for_log("n1 is being shut down")
            until(lambda: "first-1.pt" in in_bucket(cluster), what="what was whole")
            assert ending.poll() is None
            assert "large-1.pt" not in in_bucket(cluster)
            file.write(b" and half")
        out, _ = ending.communicate(timeout=DEADLINE)
    assert "node n1: all 2 files are in the bucket (" in out.decode()
    assert next(cluster.bucket.rglob("large-1.pt")).read_bytes() == b"half and half"
    cluster.wait_done()


def test_a_file_that_stays_open_is_named_in_time(cluster: NodeCluster) -> None:
    start(cluster)
    with (checkpoint_directory(cluster, "n1") / "events.pt").open("wb", buffering=0) as file:
        file.write(b"one")
        out, _ = end_of_the_container(cluster, "n1").communicate(timeout=DEADLINE)
        note = r"node n1: 1 files are in the bucket \((.*) s after the notice\), but not all: events.pt being written"
        said = re.search(note, out.decode())
        assert said is not None
        # No try begins that could not end in time.
        assert drain.WRITERS_SECONDS - 1.0 < float(said[1]) < drain.LEAVE_SECONDS
        cluster.wait_for_log(said[0])
    assert cluster.wait_done()["checkpoints"]["pending"] == ["n1: events.pt"], (
        "it stays on the node, which is not deleted"
    )
    wait_gone([cluster.agent("n1")])
    cluster.verb("n1", "flush")
    assert "events.pt" in in_bucket(cluster)


def test_a_container_that_ends_ends_its_part_of_the_run_with_everything_in_the_bucket(cluster: NodeCluster) -> None:
    start(cluster)
    agent = cluster.agent("n1")
    out, _ = end_of_the_container(cluster, "n1").communicate(timeout=drain.LEAVE_SECONDS)
    assert is_gone(agent), "the agent had its last words"
    assert f"hvdcloud: run {RUN}: node n1: all 1 files are in the bucket (" in out.decode()
    state = cluster.wait_done()
    assert (state["result"], state["reason"]) == ("lost", "node n1 ended its part of the run: it is being shut down")
    assert state["checkpoints"]["complete"]
    assert in_bucket(cluster) == {"first-0.pt", "first-1.pt"}
    assert [(event["node"], event["detail"]) for event in events(cluster) if event["event"] == "node leaves"] == [
        ("n1", "shut down")
    ]


@pytest.mark.parametrize(
    ("answers", "why"),
    [([], "preempted"), ([503], "shut down"), pytest.param([0], "shut down", marks=pytest.mark.nightly)],
)
def test_a_container_that_ends_before_the_notice_has_come_through_asks_for_it(
    cluster: NodeCluster, answers: list[int], why: str
) -> None:
    start(cluster)
    with notices(*answers) as server:
        # Too late for the agent to watch it.
        cluster.has_metadata_server("n1", server.url)
        server.preempt()
        end_of_the_container(cluster, "n1").communicate(timeout=300)
        assert server.wrong == []
    assert cluster.wait_done()["reason"] == f"node n1 ended its part of the run: it is being {why}"


def test_the_head_too_ends_with_its_run_written_down(cluster: NodeCluster) -> None:
    start(cluster)
    supervisor = cluster.supervisor()
    out, _ = end_of_the_container(cluster, "n0").communicate(timeout=300)
    assert "node n0: all 1 files are in the bucket (" in out.decode()
    assert is_gone(supervisor)
    state = json.loads((cluster.run_dir() / "state.json").read_text())
    assert (state["state"], state["result"]) == ("done", "lost")
    assert in_bucket(cluster) == {"first-0.pt", "first-1.pt"}


def test_a_node_without_a_run_ends_at_once(cluster: NodeCluster) -> None:
    cluster.start_run(TRAINS)
    cluster.wait_done()
    wait_gone([cluster.agent("n0"), cluster.supervisor()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDCLOUD_NODE_ROOT", str(cluster.root("n0")))
        # If it waited for anything, it would do so without end.
        assert drain.drain("shut down", seconds=float("inf")) == {}


def test_a_bucket_that_does_not_answer_does_not_keep_a_container_forever(
    cluster: NodeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(cluster)
    os.kill(cluster.agent("n1"), 19)
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(cluster.root("n1")))
    assert drain.drain("shut down", seconds=1.0) == {RUN: None}
