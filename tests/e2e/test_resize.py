"""`hvdcloud resize`: nodes come, go and come back, and no interruption leaves a cluster half-changed."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, Screen, brought_up, labelled, project_in, until

pytestmark = pytest.mark.engine

SAYS = ("--", "sh", "-c", 'echo "rank $HOROVOD_RANK of $HOROVOD_SIZE"')
WRITES = ("--", "sh", "-c", 'echo x > "$HVDCLOUD_CHECKPOINT_DIR/$HOROVOD_RANK.pt"')
WRITES_AND_GOES_ON = ("--", "sh", "-c", 'echo x > "$HVDCLOUD_CHECKPOINT_DIR/$HOROVOD_RANK.pt"; echo on; exec sleep 600')


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A cluster of two nodes that is up; nothing of it is left after the test."""
    project = project_in(tmp_path, f"t-b-{secrets.token_hex(2)}", nodes=2)
    with brought_up(project, engine):
        yield project


def nodes(engine: Any, project: Project) -> list[str]:
    """The indices of the containers that exist, whether or not they run."""
    found = [each.removeprefix(f"container /{project.name}-") for each in labelled(engine, project.name)]
    return sorted(each for each in found if each.isdigit())


def trains_on(project: Project, ranks: int) -> None:
    """A run has this many ranks, which all reach each other, and the whole cluster takes part."""
    out = project.hvdcloud("run", *SAYS).out
    assert sorted(out.splitlines()) == [f"[{rank}] rank {rank} of {ranks}" for rank in range(ranks)]
    status = project.hvdcloud("status", "--json").json["result"]
    assert (status["whole"], len(status["cluster"]["nodes"])) == (True, ranks)
    listed = project.hvdcloud("list", "--json").json["result"]
    assert [each["expected_nodes"] for each in listed if each["name"] == project.name] == [ranks]


def test_a_cluster_grows_and_shrinks_between_runs_and_each_run_has_all_of_it(project: Project, engine: Any) -> None:
    grown = project.hvdcloud("resize", "3", "--json").json["result"]
    assert (grown["nodes"], grown["made"], grown["removed"]) == (3, [f"{project.name}-2"], [])
    trains_on(project, 3)
    assert "hvdcloud resize 2 changes that" in project.hvdcloud("up", expect=2).err
    again = project.hvdcloud("resize", "3")
    assert "has 3 nodes, and all of them run; nothing to do" in again.out
    project.hvdcloud("run", *WRITES)
    shrunk = project.hvdcloud("resize", "1")
    assert f"deleted {project.name}-1, {project.name}-2" in shrunk.out
    assert nodes(engine, project) == ["0"]
    trains_on(project, 1)
    # What the nodes that are gone had written is in the bucket, and not on this disk yet.
    assert "2.pt" in project.hvdcloud("down", expect=9).err
    assert project.hvdcloud("pull", "--json").json["result"]["runs"][1]["files"] == 3
    project.hvdcloud("down")


@pytest.mark.nightly
def test_nodes_that_are_gone_or_stopped_come_back(project: Project, engine: Any) -> None:
    project.hvdcloud("resize", "3")
    project.hvdcloud("run", *WRITES)
    engine.containers.get(f"{project.name}-1").kill()
    engine.containers.get(f"{project.name}-2").remove(force=True)
    assert "hvdcloud resize 3 brings the others back" in project.hvdcloud("run", expect=5).err
    assert f"made {project.name}-1, {project.name}-2" in project.hvdcloud("resize", "3").out
    trains_on(project, 3)
    assert project.hvdcloud("ssh", "1", "--", "ssh", f"{project.name}-2", "hostname").out == f"{project.name}-2\n"
    project.hvdcloud("pull")
    project.hvdcloud("down")


def test_what_would_lose_checkpoints_or_break_a_run_is_refused(project: Project, engine: Any) -> None:
    project.configure(checkpoints={"keep_every": 600})
    project.hvdcloud("run", "--detach", *WRITES_AND_GOES_ON)
    for number in ("1", "3"):
        refused = project.hvdcloud("resize", number, expect=2).err
        assert "is active and not elastic" in refused
    until(lambda: "on" in project.hvdcloud("logs").out, what="the ranks")
    engine.containers.get(f"{project.name}-1").kill()
    until(
        lambda: project.hvdcloud("status", "--json").json["result"]["runs"][0]["state"] == "lost",
        what="its loss",
    )
    refused = project.hvdcloud("resize", "2", expect=9).err
    assert "is stopped and may hold more" in refused
    assert "--force" in refused
    assert nodes(engine, project) == ["0", "1"]
    project.hvdcloud("down", "--force")
    project.hvdcloud("resize", "0", expect=2)
    assert "there is no cluster" in project.hvdcloud("resize", "2", expect=2).err


def interrupted(project: Project, number: int, moment: Callable[[], object], *args: str) -> tuple[int, str]:
    """Send a command a signal as soon as something is true. Returns its exit code and what it printed."""
    with project.started(*args) as process:
        screen = Screen(process)
        until(lambda: moment() or process.poll() is not None, what="the moment", pause=0.05)
        process.send_signal(number)
        code = screen.end()
    return code, screen.text


@pytest.mark.nightly
def test_a_resize_that_was_killed_is_finished_by_the_next(project: Project, engine: Any) -> None:
    known_hosts = project.state / project.name / "known_hosts"
    moments: list[Callable[[], object]] = [
        lambda: "2" in nodes(engine, project),
        lambda: f"{project.name}-2" in known_hosts.read_text(),
    ]
    for moment in moments:
        code, printed = interrupted(project, signal.SIGKILL, moment, "resize", "3")
        assert code == -signal.SIGKILL, printed
        if moment is moments[0]:
            assert "not whole" in project.hvdcloud("run", *SAYS, expect=5).err
            assert project.hvdcloud("resize", "2").out.count(f"deleted {project.name}-2") == 1
            assert nodes(engine, project) == ["0", "1"]
    project.hvdcloud("resize", "3")
    assert project.hvdcloud("ssh", "0", "--", "ssh", f"{project.name}-2", "hostname").out == f"{project.name}-2\n"
    code, printed = interrupted(
        project, signal.SIGKILL, lambda: nodes(engine, project) != ["0", "1", "2"], "resize", "1"
    )
    assert code == -signal.SIGKILL, printed
    project.hvdcloud("resize", "1")
    assert nodes(engine, project) == ["0"]
    trains_on(project, 1)
