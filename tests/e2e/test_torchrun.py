"""torchrun on real nodes: a run trains, continues, fails, is stuck and is stopped. Horovod: test_runs.py."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.chaos import run_in
from tests.support.harness import Project, until
from tests.support.project_runs import in_bucket, last_run, pulled
from tests.support.torchrun_job import cluster, job, line_of, nothing_runs, started, training

pytestmark = [pytest.mark.engine, pytest.mark.nightly]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, torchrun_image: str) -> Iterator[Project]:
    """Two nodes for one run after the other."""
    with cluster(tmp_path_factory.mktemp("torchrun"), engine, "t-torchrun") as project:
        yield project


def test_every_slot_of_every_node_has_a_rank_and_the_next_run_continues_on_fewer(
    project: Project, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(project.environ, "HVDCLOUD_RUN__SLOTS_PER_NODE", "2")
    ended = project.hvdcloud("run", "--fresh", *job())
    for rank in range(4):
        assert f"[{rank}] rank {rank} of 4, {rank % 2} of 2 here" in ended.out.splitlines()
    assert "[launcher]" not in ended.out + ended.err
    assert {"step-00004.pt", "plain.pt"} <= in_bucket(project)
    one = project.hvdcloud("logs", "--rank", "3").out
    assert "rank 3 of 4" in one
    assert "rank 2 of 4" not in one
    refused = project.hvdcloud("run", "--fresh", "-np", "3", *job(), expect=2)
    assert "3 ranks do not fill t-torchrun-1, which has 2 slots" in refused.err
    ended = project.hvdcloud("run", "-np", "2", *job(steps=7))
    assert "[0] world of 2 ranks begins at step 5" in ended.out.splitlines()
    assert ended.out.count(" of 2 here") == 2
    assert {"step-00006.pt", "plain.pt"} <= pulled(project)
    nothing_runs(engine, project)


def test_the_exception_of_the_first_rank_to_fail_is_named_without_the_launchers_own(
    project: Project, engine: Any
) -> None:
    ended = project.hvdcloud("run", "--fresh", "--json", *job("raise"), expect=7).json
    said = f"rank 1 (t-torchrun-1) raised ValueError: my bug ({line_of('raise ValueError')})"
    assert (ended["result"]["reason"], ended["result"]["exit_code"]) == (said, 1)
    log = project.hvdcloud("logs", "--verbose").out
    assert "ChildFailedError" not in log
    assert "SignalException" not in log
    assert "step-00002.pt" in in_bucket(project)
    nothing_runs(engine, project)


def test_without_its_torchrun_a_node_trains_on_and_is_stopped_all_the_same(project: Project, engine: Any) -> None:
    with training(project) as screen:
        code, output = run_in(engine, "t-torchrun-1", "pkill", "-KILL", "-f", "torchrun --nnodes")
        assert code == 0, output
        steps = screen.text.count("rank 1 step")
        until(lambda: screen.text.count("rank 1 step") > steps + 20, what="more steps")
        project.hvdcloud("stop")
        assert screen.end() == 7
    assert last_run(project)["state"] == "stopped"
    assert "Traceback" not in project.hvdcloud("logs", "--verbose").out
    assert pulled(project) >= {"plain.pt"}
    nothing_runs(engine, project)


def test_ctrl_c_detaches_and_a_rank_that_is_killed_ends_the_run(project: Project, engine: Any) -> None:
    with started(project) as (screen, process):
        process.send_signal(signal.SIGINT)
        assert screen.end() == 130
    assert last_run(project)["state"] == "running"
    code, output = run_in(engine, "t-torchrun-1", "pkill", "-KILL", "-o", "-f", "^python train.py")
    assert code == 0, output
    until(lambda: last_run(project)["state"] == "failed", what="the end of the run")
    assert re.fullmatch(r"rank 1 \(t-torchrun-1\) was killed by signal 9 \(SIGKILL\).*", last_run(project)["reason"])
    nothing_runs(engine, project)


def test_a_rank_that_never_comes_to_the_others_is_named_with_all_stacks(project: Project) -> None:
    project.configure(nodes=2, limits={"stuck": "20s"}, run={"launcher": "torchrun"})
    ended = project.hvdcloud("run", "--fresh", "--json", *job("stuck"), expect=7).json
    groups = {tuple(group["ranks"]): group for group in ended["result"]["stuck"]["groups"]}
    assert groups[1,]["place"] == line_of("time.sleep(10000)")
    assert sorted(rank for ranks in groups for rank in ranks) == [0, 1]
    assert "step-00002.pt" in in_bucket(project)
