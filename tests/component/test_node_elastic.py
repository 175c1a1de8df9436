"""An elastic run's life on its nodes: real supervisor, agents and workers; only ssh and horovodrun are stand-ins."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.standins.metadata.preemption import notices
from tests.support.elastic_nodes import ElasticNodes, elastic_nodes, needs_namespaces
from tests.support.harness import until
from tests.support.nodes import RUN

pytestmark = needs_namespaces

SECRET = "hunter2-the-secret"
SUCCEEDS = "raise SystemExit(0)"


@pytest.fixture
def two_nodes() -> Iterator[ElasticNodes]:
    with elastic_nodes(2) as cluster:
        yield cluster


@pytest.fixture
def three_nodes() -> Iterator[ElasticNodes]:
    with elastic_nodes(3) as cluster:
        yield cluster


def test_a_lost_node_is_gone_on_without_and_returns_under_another_name(three_nodes: ElasticNodes) -> None:
    cluster = three_nodes
    head, one, two = cluster.names
    cluster.begin(env={"TOKEN": SECRET})
    cluster.settle()

    cluster.lose(two)
    cluster.wait_for_world([head, one])
    assert cluster.member(two)["state"] == "lost"
    cluster.switch_on(two)
    cluster.wait_for_world([head, one, f"{two}-g2"])

    # The secrets went with the node's memory, and are given again, to its root alone.
    environment = cluster.root(two) / "run/hvdcloud" / RUN / "env.json"
    assert json.loads(environment.read_text()) == {"TOKEN": SECRET}
    assert stat.S_IMODE(environment.stat().st_mode) == 0o600
    assert f"{two} {two}-g2\n" in (cluster.root(head) / "etc/hosts").read_text()
    for alias in (head, one, f"{two}-g2"):
        cluster.order(alias, SUCCEEDS)
    state = cluster.wait_done()

    assert (state["result"], state["exit_code"], state["reason"]) == ("succeeded", 0, "")
    assert (state["elastic"], state["restarts"], state["world"]) == ({"min": 1, "max": 8}, 0, 0)
    assert [(each["name"], each["alias"], each["state"]) for each in state["members"]] == [
        (head, head, "listed"),
        (one, one, "listed"),
        (two, f"{two}-g2", "listed"),
    ]
    assert state["nodes_lost"] == []
    assert state["checkpoints"]["complete"]
    assert len(list(cluster.bucket.rglob("by-*"))) == 4
    assert [event["node"] for event in cluster.events("lost a node")] == [two]
    assert [(event["node"], event["detail"]) for event in cluster.events("node joins")] == [(two, f"as {two}-g2")]
    worlds = [event["ranks"] for event in cluster.events("world")]
    first = worlds.index(3)  # A node that started late joined two others.
    assert worlds[first : first + 3] == [3, 2, 3]
    assert SECRET not in cluster.log()


def test_a_dismissed_node_leaves_with_its_checkpoints_in_the_bucket(three_nodes: ElasticNodes) -> None:
    cluster = three_nodes
    head, one, two = cluster.names
    cluster.begin(least=2)

    assert cluster.dismiss(head)["error"] == f"{head} is the head, which drives the run"
    needed = "fewer than 2 nodes would train, the minimum of run.elastic"
    assert needed in cluster.dismiss(one, two)["error"]
    assert "takes no part in this run" in cluster.dismiss("127.0.0.99")["error"]
    assert cluster.admit(head)["error"] == f"{head} is the head, which is not replaced"
    assert cluster.dismiss(two) == {"ok": True}

    assert len(list(cluster.bucket.rglob(f"by-{two}"))) == 1
    assert not (cluster.root(two) / "run/hvdcloud" / RUN).exists()
    cluster.wait_for_world([head, one])
    assert cluster.member(two)["state"] == "gone"
    assert cluster.current()["nodes"] == [head, one]
    assert needed in cluster.dismiss(one)["error"]

    assert cluster.admit(two) == {"ok": True}
    cluster.wait_for_world([head, one, f"{two}-g2"])
    assert cluster.current()["nodes"] == [head, one, two]
    # A training that ends well after SIGTERM has been stopped all the same.
    for alias in (head, one, f"{two}-g2"):
        cluster.order(alias, "import signal; signal.signal(15, lambda *_: os._exit(0)); print('handles', flush=True)")
    cluster.wait_until(lambda: len(set(re.findall(r"\[(\d)\] handles", cluster.log()))) == 3, "the orders")
    state = cluster.verb(head, "stop", RUN)

    assert (state["result"], state["exit_code"], state["reason"]) == ("stopped", None, "stopped on request")
    assert state["nodes_lost"] == []
    assert [(event["node"], event["detail"]) for event in cluster.events("node leaves")] == [(two, "dismissed")]
    assert cluster.events("lost a node") == []
    assert "has ended" in cluster.dismiss(two)["error"]


def test_a_head_that_is_preempted_ends_the_run_with_its_end_written_down(two_nodes: ElasticNodes) -> None:
    cluster = two_nodes
    head, one = cluster.names
    with notices() as server:
        cluster.has_metadata_server(head, server.url)
        cluster.begin()
        server.preempt()
        until(lambda: cluster.events("preempted"), what="the notice")
    assert cluster.current()["state"] == "running"
    assert [(each["name"], each["state"]) for each in cluster.current()["members"]] == [
        (head, "listed"), (one, "listed"),
    ]  # fmt: skip

    # What its container does before it ends; the others need it, and cannot wait for another one.
    program = "from hvdcloud.node.uploads import drain; drain.drain('preempted')"
    subprocess.run([sys.executable, "-c", program], env=cluster.environment(head), check=True, timeout=300)

    state = cluster.current()
    assert (state["state"], state["result"]) == ("done", "lost")
    assert state["reason"] == f"node {head} ended its part of the run: it is being preempted"
    assert state["nodes_lost"] == [head]
    assert state["checkpoints"]["complete"]


def test_horovodrun_that_dies_over_a_loss_starts_again_from_the_newest_checkpoint(three_nodes: ElasticNodes) -> None:
    cluster = three_nodes
    head, one, two = cluster.names
    cluster.begin()
    checkpoints = [cluster.root(name) / "var/lib/hvdcloud/checkpoints" / RUN for name in (head, one)]
    for folder, text, modified in zip(checkpoints, ("older", "newer"), (1_700_000_000, 1_700_000_060), strict=True):
        (folder / "latest").write_text(text)
        os.utime(folder / "latest", (modified, modified))
    # A node that is slower to upload its own than another one is to fetch keeps it to itself.
    cluster.wait_until(
        lambda: "newer" in [found.read_text() for found in cluster.bucket.rglob("latest")], "the newer one's upload"
    )
    cluster.settle()

    cluster.lose(two)
    cluster.wait_until(lambda: cluster.events("lost a node"), "the loss")
    os.kill(cluster.horovodrun(), signal.SIGKILL)
    cluster.wait_for_world([f"{head}-g2", f"{one}-g2"])

    assert cluster.current()["restarts"] == 1
    assert len(cluster.events("started again")) == 1
    assert [(folder / "latest").read_text() for folder in checkpoints] == ["newer", "newer"]
    for alias in (f"{head}-g2", f"{one}-g2"):
        cluster.order(alias, SUCCEEDS)
    state = cluster.wait_done()
    assert (state["result"], state["restarts"], state["nodes_lost"]) == ("succeeded", 1, [two])


def test_when_a_node_falls_silent_horovod_starts_again_and_the_node_joins_once_awake(three_nodes: ElasticNodes) -> None:
    cluster = three_nodes
    head, one, two = cluster.names
    cluster.begin()
    cluster.settle()

    cluster.signal(two, signal.SIGSTOP)
    cluster.wait_for_world([f"{head}-g2", f"{one}-g2"])
    assert [(event["node"], event["detail"]) for event in cluster.events("lost a node")] == [
        (two, "no heartbeat for 8 s")
    ]
    cluster.signal(two, signal.SIGCONT)
    cluster.wait_for_world([f"{head}-g2", f"{one}-g2", f"{two}-g2"])

    assert (cluster.current()["restarts"], len(cluster.events("started again"))) == (1, 1)
    for alias in (f"{head}-g2", f"{one}-g2", f"{two}-g2"):
        cluster.order(alias, SUCCEEDS)
    assert cluster.wait_done()["result"] == "succeeded"


def test_horovodrun_that_dies_without_a_loss_is_not_started_again(two_nodes: ElasticNodes) -> None:
    two_nodes.begin()

    os.kill(two_nodes.horovodrun(), signal.SIGKILL)
    state = two_nodes.wait_done()

    assert (state["result"], state["exit_code"]) == ("failed", 137)
    assert state["reason"] == "horovodrun was killed by signal 9 (SIGKILL)"
    assert (state["restarts"], two_nodes.events("started again")) == (0, [])
