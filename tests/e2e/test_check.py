"""A bad node is found before a long run, and a slow rank in one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import ExitCode
from hvdcloud.runs.slow_ranks import LEAST_SHARE
from tests.support.chaos import limit_network
from tests.support.harness import Project, Screen, labelled, project_in

pytestmark = pytest.mark.engine

SAME_WORK = """
import time
import horovod.torch as hvd
import torch

hvd.init()
value = torch.ones(1000)
hvd.allreduce_(value, name="gradient", op=hvd.Average)
print("trains", flush=True)
began = time.monotonic()
while float(hvd.allreduce(torch.tensor([time.monotonic() - began]), name="time", op=hvd.Max)) < 12:
    # As much work on every rank; one node has a tenth of a core for it, and on a busy machine the others have more.
    until = time.thread_time() + 0.05
    while time.thread_time() < until:
        pass
    hvd.allreduce_(value, name="gradient", op=hvd.Average)
"""


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A cluster of three nodes that is up; nothing of it is left after the test."""
    # Ranks that ask each other every millisecond, Horovod's default, keep a core busy while they wait for the slow one.
    project = project_in(tmp_path, "t-check", nodes=3, run={"env": {"HOROVOD_CYCLE_TIME": "10"}})
    project.hvdcloud("up")
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


def test_a_slow_rank_is_named_and_a_bad_node_before_a_run(project: Project, engine: Any, tmp_path: Path) -> None:
    """That it is replaced: test_gce_replaced.py."""
    project.write("train.py", SAME_WORK)
    with project.started("run", "--json", "--", "python", "train.py") as process:
        screen = Screen(process)
        screen.wait_for("trains\n", times=3)
        engine.containers.get("t-check-1").update(cpu_period=100_000, cpu_quota=10_000)
        screen.end(within=60)
    engine.containers.get("t-check-1").update(cpu_quota=-1)
    ran = json.loads(screen.text[screen.text.index("\n{") :])["result"]
    assert (ran["slow_ranks"]["ranks"], ran["slow_ranks"]["nodes"]) == ([1], ["t-check-1"])
    assert ran["slow_ranks"]["share"] >= LEAST_SHARE
    assert [each["node"] for each in ran["waits"]] == ["t-check-0", "t-check-1", "t-check-2"]
    project.hvdcloud("report", "--to", str(tmp_path / "report.html"))
    assert "rank 1 (t-check-1): the others wait" in (tmp_path / "report.html").read_text()
    assert "rank 1 (t-check-1): the others wait" in project.hvdcloud("status").out

    limit_network(engine.containers.get("t-check-2"), "4mbit")
    checked = project.hvdcloud("check", "--seconds", "2", "--size", "1", "--json", expect=int(ExitCode.NODE))
    result = checked.json["result"]
    (bad,) = [each for each in result["nodes"] if each["health"] == "bad"]
    assert bad["node"] == "t-check-2", (result, checked.err)
    assert any(reason.startswith("all-reduce: ") for reason in bad["reasons"])
    assert [each["error"] for each in (*result["pairs"], result["together"])] == [""] * 4
    assert result["together"]["ranks"] == 3
    # No run was made of it, and the node's part of the bucket is empty.
    runs = project.hvdcloud("status", "--json").json["result"]["runs"]
    assert [each["run"] for each in runs] == [ran["run"]], (runs, ran)
