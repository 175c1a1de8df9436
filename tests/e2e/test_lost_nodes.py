"""Nodes that die or freeze in the middle of a run, and a connection that is cut: how it ends, and what is kept."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import jobs
from tests.support.harness import Project, Screen, brought_up, freeze, processes_in, project_in, until
from tests.support.project_runs import in_bucket, last_run, on_disk, pulled

pytestmark = pytest.mark.engine

LEFTOVERS = ("train.py", "horovodrun", "mpirun", "orted")


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A cluster of two nodes that the test may break."""
    project = project_in(tmp_path, f"t-lost-{secrets.token_hex(2)}")
    with brought_up(project, engine):
        yield project


@contextmanager
def training(
    project: Project,
    engine: Any,
    *,
    controller: str = "gloo",
    uploads: bool = True,
    job: str = jobs.ENDLESS_ALONE,
) -> Iterator[tuple[Screen, Any]]:
    """A run in which both ranks train and have written checkpoints.

    Args:
        uploads: checkpoints leave the nodes all the time, and some of both have; else only when the run ends.
    """
    project.configure(checkpoints={"keep_every": 0.2 if uploads else 600.0})
    project.write("train.py", job)
    with project.started("run", "--controller", controller, "--", "python", "train.py", "0", "1") as process:
        screen = Screen(process)
        screen.wait_for("trains\n", times=2)

        def writers() -> set[int]:
            names = in_bucket(project) if uploads else on_disk(engine, project.name)
            return {int(name.split("-")[1]) for name in names}

        until(lambda: writers() == {0, 1}, what="checkpoints of both ranks")
        yield screen, process


def leftovers(engine: Any, node: str) -> list[str]:
    return [line for word in LEFTOVERS for line in processes_in(engine, node, [word])]


def assert_the_lost_node_stands_in_the_way(project: Project, node: str, *, lost: str) -> None:
    """No run starts without the node, and nothing deletes what only it may have."""
    assert f"{node} {lost}" in project.hvdcloud("run", expect=5).err
    assert "NOT WHOLE" in project.hvdcloud("status").out
    refused = project.hvdcloud("down", expect=9)
    assert f"node {node} is {lost}" in refused.err
    assert "--force" in refused.err


@pytest.mark.parametrize("controller", ["gloo", pytest.param("mpi", marks=pytest.mark.nightly)])
def test_a_worker_that_dies_ends_the_run_and_loses_no_checkpoint_of_the_others(
    project: Project, engine: Any, controller: str
) -> None:
    head, worker = f"{project.name}-0", f"{project.name}-1"
    with training(project, engine, controller=controller, job=jobs.ENDLESS) as (screen, process):
        before = on_disk(engine, project.name, 0) | in_bucket(project)
        engine.containers.get(worker).kill()
        screen.end()
    assert leftovers(engine, head) == []
    assert process.returncode == 7
    assert f"node {worker} was lost" in screen.text
    run = last_run(project)
    assert (run["state"], run["exit_code"]) == ("lost", None)
    assert worker in run["reason"]
    assert not run["checkpoints_complete"]
    assert before <= pulled(project)
    assert_the_lost_node_stands_in_the_way(project, worker, lost="stopped")


@pytest.mark.nightly
@pytest.mark.parametrize("controller", ["gloo", "mpi"])
def test_a_worker_that_freezes_ends_the_run_and_its_checkpoints_come_when_it_thaws(
    project: Project, engine: Any, controller: str
) -> None:
    head, worker = f"{project.name}-0", f"{project.name}-1"
    # mpirun waits forever for whatever it has started on a frozen node, with Horovod or without.
    job = jobs.ENDLESS if controller == "gloo" else jobs.ENDLESS_ALONE
    with training(project, engine, controller=controller, uploads=False, job=job) as (screen, process):
        before = on_disk(engine, project.name)
        freeze(engine.containers.get(worker))
        screen.end()
    assert leftovers(engine, head) == []
    assert process.returncode == 7
    # Who notices first, ssh or the lease, is a matter of seconds.
    silent = rf"node {worker} was lost: (no heartbeat for \d+ s|Timeout, server {worker} not responding)"
    assert re.search(silent, screen.text), screen.text
    assert last_run(project)["state"] == "lost"
    assert not before <= pulled(project)
    assert_the_lost_node_stands_in_the_way(project, worker, lost="frozen")
    engine.containers.get(worker).unpause()
    until(lambda: not leftovers(engine, worker), what=f"{worker} to end its part of the run")
    project.hvdcloud("down", expect=9)
    assert before <= pulled(project)
    project.hvdcloud("down")


def test_a_head_that_dies_ends_the_run_on_the_others_and_what_was_uploaded_can_be_pulled(
    project: Project, engine: Any
) -> None:
    head, worker = f"{project.name}-0", f"{project.name}-1"
    with training(project, engine) as (screen, process):
        before = on_disk(engine, project.name, 1) | in_bucket(project)
        engine.containers.get(head).kill()
        screen.end()
    assert process.returncode == 5
    assert f"node {head}, the head, has stopped" in screen.text
    assert "hvdcloud pull" in screen.text
    until(lambda: not leftovers(engine, worker), what=f"{worker} to end its ranks")
    status = project.hvdcloud("status").out
    assert "runs: unknown" in status
    project.hvdcloud("logs", expect=5)
    project.hvdcloud("stop", expect=5)
    # The worker uploads its last files by itself.
    until(lambda: before <= in_bucket(project), what="the worker's checkpoints")
    assert before <= pulled(project)
    assert_the_lost_node_stands_in_the_way(project, head, lost="stopped")


@pytest.mark.nightly
def test_a_head_that_freezes_is_reported_and_ends_the_run_when_it_thaws(project: Project, engine: Any) -> None:
    head, worker = f"{project.name}-0", f"{project.name}-1"
    with training(project, engine, uploads=False) as (screen, process):
        before = on_disk(engine, project.name)
        freeze(engine.containers.get(head))
        screen.end()
    assert process.returncode == 5
    assert f"node {head}, the head, is frozen" in screen.text
    until(lambda: not leftovers(engine, worker), what=f"{worker} to end its ranks")
    assert f"{head} is frozen" in project.hvdcloud("logs", expect=5).err
    assert not before <= pulled(project)
    assert_the_lost_node_stands_in_the_way(project, head, lost="frozen")
    engine.containers.get(head).unpause()
    ended = project.hvdcloud("logs", "-f", "--json", expect=7).json["result"]
    assert ended["state"] == "lost"
    assert worker in ended["reason"]
    assert leftovers(engine, head) == []
    assert leftovers(engine, worker) == []
    project.hvdcloud("run", "--", "true")
    assert before <= pulled(project)
    project.hvdcloud("down")


# Ends the sshd session in which the laptop follows the log; the brackets keep the patterns from finding themselves.
CUT = """
for pid in $(grep -l -e '[-]-follow' -e '[s]erve' /proc/[0-9]*/cmdline | cut -d/ -f3); do
    kill -9 $(cut -d' ' -f4 /proc/$pid/stat) && echo cut
done
"""


def test_a_connection_that_is_cut_is_made_again_and_neither_loses_nor_repeats_a_line(
    project: Project, engine: Any
) -> None:
    project.write("train.py", jobs.COUNTS_LINES)
    nodes = [engine.containers.get(f"{project.name}-{index}") for index in (0, 1)]
    with project.started("run") as process:
        screen = Screen(process)
        for cuts in (1, 2, 3):
            screen.wait_for(" line ", times=screen.text.count(" line ") + 50)
            until(lambda: b"cut" in nodes[0].exec_run(["sh", "-c", CUT]).output, what="a connection to cut")
            screen.wait_for("connecting again", times=cuts)
        for node in nodes:
            node.exec_run(["touch", "/tmp/enough"])
        screen.end()
    assert process.returncode == 0, screen.text
    # A warning may stand in the middle of a line of output, where the connection broke.
    shown = re.sub(r"warning: .*connecting again.*\n", "", screen.text)
    shown = "".join(line for line in shown.splitlines(keepends=True) if line.startswith("["))
    assert shown == project.hvdcloud("logs").out
    for rank in (0, 1):
        mine = re.findall(rf"^\[{rank}\] rank {rank} line (\d+) ([.]*)$", shown, flags=re.MULTILINE)
        assert len(mine) > 100
        assert mine == [(str(number), "." * (number * 37 % 400)) for number in range(len(mine))]
