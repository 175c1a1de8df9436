"""An elastic run continues when nodes are lost, and ends with the result of an undisturbed training.

The first tests share a run of three nodes, in this order: each does something to it, sees that the others continue and
that the node comes back. The attached client replaces what is gone for good.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support import elastic_run
from tests.support.chaos import Happened, disturb, possible
from tests.support.elastic_run import Training, attached, elastic_project, members, run_state
from tests.support.harness import Project, Screen, brought_up, processes_in, until
from tests.support.project_runs import in_bucket

pytestmark = pytest.mark.engine

NODES = 3
OPTIONS = "--epochs 1000 --pause 0.2"
CATCHING_UP_SECONDS = 30.0
"""For a training that was started again to be where it was before."""
LEFTOVERS = ("train.py", "horovodrun", "hvdcloud.node agent")


@dataclass
class Shared:
    """The run that the first tests share."""

    project: Project
    engine: Any
    image: str
    screen: Screen
    training: Training
    recoveries: list[elastic_run.Recovery] = field(default_factory=list)
    happened: list[Happened] = field(default_factory=list)
    """By the test that runs."""

    def node(self, index: int) -> str:
        return f"{self.project.name}-{index}"

    def disturb(self, how: str, index: int) -> Happened:
        """Do something to a node; undone when the test ends, if not before."""
        self.happened.append(disturb(self.engine, how, self.node(index)))
        return self.happened[-1]

    def go_on_without(self, happened: Happened) -> elastic_run.Recovery:
        """The others train on."""
        found = elastic_run.recovery(self.training, happened)
        self.recoveries.append(found)
        # Commits are five steps apart, and what was done since the last one is done again. Where Horovod was started
        # again (docs/elastic.md), it is what was done since the newest checkpoint that is in the bucket: they are an
        # epoch of 20 steps apart, and the last one may be on its way.
        assert found.repeated <= (40 if self.was_started_again(since=happened.at - CATCHING_UP_SECONDS) else 5), found
        return found

    def was_started_again(self, *, since: float) -> bool:
        """Whether Horovod was, after this moment; in seconds since 1970."""
        found = elastic_run.events(self.engine, self.project)
        return any(each["event"] == "started again" and each["t"] >= since for each in found)

    def whole_again(self, went_on: elastic_run.Recovery) -> float:
        """All ranks train again, and every node is listed. Returns when, in seconds since 1970."""
        # A step of all ranks may still be printed while one of them is being lost.
        step = self.training.step_in_world_of(NODES, since=went_on.went_on - 0.001)
        states = {name: each["state"] for name, each in members(self.engine, self.project).items()}
        assert set(states.values()) == {"listed"}, states
        return step.at

    def events(self, event: str, node: str, *, since: float) -> list[dict[str, Any]]:
        """What the head wrote down of a node."""
        found = elastic_run.events(self.engine, self.project)
        return [each for each in found if each["event"] == event and each["t"] >= since and each.get("node") == node]

    def told(self, event: str, node: str, *, since: float) -> dict[str, Any]:
        """An event of the run, as the head wrote it down."""
        what = f"event {event!r} of {node}: {elastic_run.events(self.engine, self.project)}"
        return until(lambda: self.events(event, node, since=since), what=what)[0]

    def lost_and_joined(self, happened: Happened) -> None:
        """A node was lost, and is back under another name: Horovod uses none again that has failed."""
        node = happened.node
        self.told("lost a node", node, since=happened.at)
        self.told("node joins", node, since=happened.at)
        alias = members(self.engine, self.project)[node]["alias"]
        assert re.fullmatch(rf"{node}-g\d+", alias)
        # Horovod may have failed on it once more before all ranks trained again.
        joins = [each["detail"] for each in self.events("node joins", node, since=happened.at)]
        assert any(alias in detail for detail in joins), joins


@contextmanager
def cluster(root: Path, engine: Any, *, nodes: int, least: int = 1, options: str = OPTIONS) -> Iterator[Project]:
    """A cluster of which nothing is left afterwards."""
    name = f"t-f-{secrets.token_hex(2)}"
    project = elastic_project(root, name, nodes=nodes, least=least, options=options)
    with brought_up(project, engine):
        yield project


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Shared]:
    """Three nodes that train, with this machine attached."""
    with (
        cluster(tmp_path_factory.mktemp("elastic"), engine, nodes=NODES) as project,
        attached(project) as (screen, training),
    ):
        training.step_in_world_of(NODES)
        yield Shared(project=project, engine=engine, image=image, screen=screen, training=training)


@pytest.fixture
def running(shared: Shared) -> Iterator[Shared]:
    """The shared run with all ranks training, whatever an earlier test that failed has left."""
    shared.training.step_in_world_of(NODES, since=time.time(), what="at the beginning")
    yield shared
    for each in shared.happened:
        each.undo()
    shared.happened.clear()


# --- one run of three nodes ---------------------------------------------------------------------------------------


def test_the_first_list_that_horovod_sees_has_every_node(running: Shared) -> None:
    assert [world.world for world in running.training.worlds()] == [NODES], running.training.tail()
    state = run_state(running.engine, running.project)
    assert (state["state"], state["restarts"]) == ("running", 0)
    assert state["elastic"] == {"min": 1, "max": NODES}
    assert [each["alias"] for each in state["members"]] == [running.node(index) for index in range(NODES)]
    until(lambda: run_state(running.engine, running.project)["world"] == NODES, what="a world of three")


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["network", "disconnect"])
def test_the_others_continue_and_the_node_comes_back(running: Shared, how: str) -> None:
    if how not in possible(running.engine):
        pytest.skip(f"{how}: only root on the engine's own machine can")
    happened = running.disturb(how, 2)
    lost = running.go_on_without(happened)
    happened.undo()
    back = running.whole_again(lost)
    running.lost_and_joined(happened)
    print(f"{lost}; whole after {back - happened.at:.1f} s")


def test_a_stopped_node_is_replaced_by_the_attached_client(running: Shared) -> None:
    node = running.node(1)
    before = running.engine.containers.get(node).id
    happened = running.disturb("stop", 1)
    running.whole_again(running.go_on_without(happened))
    running.lost_and_joined(happened)
    assert running.engine.containers.get(node).id != before


@pytest.mark.nightly
def test_a_node_whose_training_process_is_killed_gets_another_one_and_be_it_the_head(running: Shared) -> None:
    happened = running.disturb("worker", 0)
    went_on = running.go_on_without(happened)
    running.told("worker failed", running.node(0), since=happened.at)
    running.whole_again(went_on)


def test_after_all_that_every_sample_was_seen_once_and_the_result_is_that_of_an_undisturbed_run(
    running: Shared,
) -> None:
    elastic_run.finish_soon(running.engine, running.project)
    running.screen.end()
    assert running.screen.exit_code == 0, running.screen.text[-4000:]
    result = elastic_run.pulled_result(running.project)
    undisturbed = elastic_run.reference(running.engine, running.image, epochs=result["epochs"])
    difference = elastic_run.same_result(result, undisturbed)
    print(*running.recoveries, f"largest difference {difference:.1e}", sep="\n")
    for index in range(NODES):
        left = [line for word in LEFTOVERS for line in processes_in(running.engine, running.node(index), [word])]
        assert left == []


# --- runs that end ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    """Two nodes, of which both are needed, for one short run after the other."""
    with cluster(tmp_path_factory.mktemp("pair"), engine, nodes=2, least=2) as project:
        yield project


def ends(project: Project, options: str) -> dict[str, Any]:
    """A run that fails: what `status` says of it."""
    elastic_run.configure(project, nodes=2, least=2, options=options)
    with attached(project, "--fresh") as (screen, _):
        try:
            screen.end()
        finally:
            if screen.exit_code is None:
                project.hvdcloud("stop")
    assert screen.exit_code == 7, screen.text
    run: dict[str, Any] = project.hvdcloud("status", "--json").json["result"]["runs"][-1]
    return run


@pytest.mark.nightly
def test_a_training_that_fails_on_every_rank_fails_once_with_its_own_code(pair: Project, engine: Any) -> None:
    run = ends(pair, "--fail-at 12 --exit-code 3")
    assert (run["state"], run["exit_code"]) == ("failed", 3), run
    state = run_state(engine, pair)
    assert state["restarts"] == 0
    log = elastic_run.head_file(engine, pair, "log")
    assert log.count("world of 2 ranks") == 1, log


@pytest.mark.nightly
def test_a_rank_that_leaves_early_with_0_does_not_make_the_run_a_success(pair: Project) -> None:
    run = ends(pair, "--leave-at 12 --pause 0.2 --epochs 20")
    assert run["state"] == "failed", run
    assert "exited with 0 while" in run["reason"]


@pytest.mark.nightly
def test_a_removal_below_the_minimum_is_refused_and_a_lost_head_ends_the_run_which_another_cluster_continues(
    tmp_path: Path, engine: Any, image: str
) -> None:
    with cluster(tmp_path, engine, nodes=2, least=2, options="--epochs 1000 --pause 0.1") as project:
        head, worker = f"{project.name}-0", f"{project.name}-1"
        with attached(project) as (screen, training):
            training.step_in_world_of(2)
            assert "2" in project.hvdcloud("resize", "1", expect=2).err
            training.steps_go_on()
            assert len(training.worlds()) == 1
            until(lambda: "epoch t=" in screen.text, what="the first epoch's end")
            until(lambda: in_bucket(project), what="its checkpoint in the bucket")
            saved = in_bucket(project)
            disturb(engine, "kill", head)
            screen.end()
            assert screen.exit_code == 5, screen.text
            started = re.search(r"run (\d{8}-\d{6}-[0-9a-f]{6}):", screen.text)
            assert started, screen.text
        assert f"node {head}, the head, has stopped" in screen.text
        until(
            lambda: not [line for word in LEFTOVERS for line in processes_in(engine, worker, [word])],
            what=f"{worker} to end its ranks",
        )
        assert saved <= in_bucket(project)
        project.hvdcloud("down", "--force")
        project.hvdcloud("up")
        with attached(project, "--resume", started[1]) as (screen, training):
            training.step_in_world_of(2)
            resumed = re.search(r"resumed after epoch (\d+)", screen.text)
            assert resumed, training.tail()
            assert int(resumed[1]) >= len(saved)
            elastic_run.finish_soon(engine, project)
            screen.end()
            assert screen.exit_code == 0, screen.text
        result = elastic_run.pulled_result(project)
        elastic_run.same_result(result, elastic_run.reference(engine, image, epochs=result["epochs"]))
