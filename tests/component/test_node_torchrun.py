"""An elastic run under torchrun: real supervisor, agents and workers; only ssh and torchrun itself are stand-ins.

The stand-in for torchrun starts one worker a node with its rank. What PyTorch's own does: tests/e2e/test_torchrun.py.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict

import pytest

from hvdcloud.runs.spec import Host
from tests.support.elastic_nodes import ElasticNodes, elastic_nodes, needs_namespaces
from tests.support.nodes import RUN

pytestmark = needs_namespaces

_TORCHRUN = """#!/usr/bin/env -S {python} -IS
import os, sys
option = lambda name: sys.argv[sys.argv.index(name) + 1]
os.environ |= {{"RANK": option("--node-rank"), "LOCAL_RANK": "0", "WORLD_SIZE": option("--nnodes")}}
command = sys.argv[sys.argv.index("--no-python") + 1:]
os.execvp(command[0], command)
"""
_TRAINS = """
import os, pathlib, sys, time
rank, world, base = os.environ["RANK"], os.environ["WORLD_SIZE"], pathlib.Path(sys.argv[1])
newest = pathlib.Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"], "newest")
print(f"rank {rank} of {world} begins at {newest.read_text() if newest.exists() else 0}", flush=True)
if rank == "0":
    newest.write_text(str(int(newest.read_text()) + 1 if newest.exists() else 1))
(base / f"pid-{rank}").write_text(str(os.getpid()))
while True:
    order = base / f"order-{rank}"
    if order.exists():
        exec(order.read_text())
    time.sleep(0.02)
"""


@pytest.fixture
def nodes() -> Iterator[ElasticNodes]:
    with elastic_nodes(3) as cluster:
        yield cluster


def begin(cluster: ElasticNodes, *, least: int = 1) -> None:
    """Launch a run of torchrun on three nodes, and wait until all train."""
    cluster.launcher = "torchrun"
    cluster.add_tool("torchrun", _TORCHRUN)
    command = [sys.executable, "-c", _TRAINS, str(cluster.base)]
    answers = cluster.prepare(command, elastic={"min": least, "max": 3})
    assert all(answer.get("ok") for answer in answers), answers
    hosts = [asdict(Host(name=name, index=index, slots=1)) for index, name in enumerate(cluster.names)]
    cluster.change_spec(cluster.head, hosts=hosts, np=3, gloo_timeout=1.0, **cluster.pace)
    assert cluster.verb(cluster.head, "launch", RUN) == {"ok": True}
    for rank in range(3):
        cluster.wait_for_log(f"[{rank}] rank {rank} of 3 begins at 0")


def test_the_others_are_started_again_without_a_lost_node_and_with_it_when_it_is_back(nodes: ElasticNodes) -> None:
    begin(nodes)
    two = nodes.names[2]
    nodes.lose(two)
    for rank in (0, 1):
        nodes.wait_for_log(f"[{rank}] rank {rank} of 2 begins at 1")
    assert f"node {two} was lost; torchrun is started again from the newest checkpoint" in nodes.log()
    nodes.switch_on(two)
    for rank in range(3):
        nodes.wait_for_log(f"[{rank}] rank {rank} of 3 begins at 2")
    for rank in range(3):
        nodes.order(str(rank), "raise SystemExit(0)")
    state = nodes.wait_done()
    assert (state["result"], state["restarts"], state["nodes_lost"]) == ("succeeded", 2, [])
    # torchrun knows nodes by their own names.
    assert [(each["alias"], each["state"]) for each in state["members"]] == [(name, "listed") for name in nodes.names]


def test_an_exception_without_a_lost_node_ends_the_run_as_failed(nodes: ElasticNodes) -> None:
    begin(nodes)
    nodes.order("1", "raise SystemExit(3)")
    state = nodes.wait_done()
    assert (state["result"], state["exit_code"], state["restarts"]) == ("failed", 3, 0)
    assert state["reason"] == f"rank 1 on {nodes.names[1]} exited with 3"


def test_a_worker_that_is_killed_is_started_again_with_the_others(nodes: ElasticNodes) -> None:
    begin(nodes)
    os.kill(int((nodes.base / "pid-0").read_text()), signal.SIGKILL)
    nodes.wait_for_log("[0] rank 0 of 3 begins at 1")
    assert "was killed by signal 9 (SIGKILL); torchrun is started again from the newest checkpoint" in nodes.log()


def test_with_fewer_nodes_than_the_minimum_a_run_waits_until_one_is_back(nodes: ElasticNodes) -> None:
    begin(nodes, least=3)
    two = nodes.names[2]
    nodes.lose(two)
    nodes.wait_until(lambda: nodes.events("started again"), "the others to be ready")
    assert "of 2 begins" not in nodes.log()
    nodes.switch_on(two)
    nodes.wait_for_log("[0] rank 0 of 3 begins at 1")
    nodes.verb(nodes.head, "stop", RUN)
    assert nodes.wait_done()["result"] == "stopped"
