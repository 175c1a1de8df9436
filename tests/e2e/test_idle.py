"""`limits.idle` on this machine: idle nodes end themselves, without a client."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, Screen, at_this_load, labelled, project_in, until
from tests.support.project_runs import in_bucket

pytestmark = pytest.mark.engine

LIMIT = 6.0
"""Seconds; `up` needs less from a container's start to its joining the cluster, where nothing else runs."""
SAYS = re.compile(r"^hvdcloud: idle for \d+ (?:s|min): no run, no SSH session; switching off$", flags=re.MULTILINE)


@pytest.fixture
def limit() -> float:
    """After which nodes end, in seconds."""
    return at_this_load(LIMIT)


@contextmanager
def soon_ending(root: Path, name: str, engine: Any, *, limit: float) -> Iterator[Project]:
    """A project whose nodes end soon, and of which nothing is left after the block."""
    project = project_in(root, name, limits={"idle": limit})
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str, limit: float) -> Iterator[Project]:
    with soon_ending(tmp_path, "t-idle", engine, limit=limit) as project:
        yield project


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[tuple[Project, Project]]:
    """Two clusters whose nodes end meanwhile: of one the head is dead, and of the other the `up` was killed."""
    new, limit = tmp_path_factory.mktemp, at_this_load(LIMIT)
    with (
        soon_ending(new("headless"), "t-idle-headless", engine, limit=limit) as headless,
        soon_ending(new("orphaned"), "t-idle-orphaned", engine, limit=limit) as orphaned,
    ):
        headless.hvdcloud("up")
        engine.containers.get("t-idle-headless-0").kill()
        with orphaned.started("up") as process:
            Screen(process).wait_for("t-idle-orphaned-1: booting")
            process.kill()
        yield headless, orphaned


def states(engine: Any, project: Project) -> set[str]:
    """Of all containers of the cluster."""
    found = engine.containers.list(ignore_removed=True, all=True, filters={"label": f"hvdcloud-cluster={project.name}"})
    return {container.status for container in found}


def said(engine: Any, node: str) -> str:
    """What a node's container has written."""
    text: str = engine.containers.get(node).logs().decode()
    return text


def ended(engine: Any, project: Project) -> bool:
    return states(engine, project) == {"exited"}


def test_nodes_end_after_the_last_session_and_the_last_run_and_not_before(
    project: Project, engine: Any, limit: float
) -> None:
    project.hvdcloud("up")
    # The run is longer than the limit, and a session outlives it by more than that.
    run = f'sleep {limit + 2}; echo weights > "$HVDCLOUD_CHECKPOINT_DIR/last.pt"'
    project.hvdcloud("run", "--detach", "--", "sh", "-c", run)
    with project.started("ssh", "1", "--", "sleep", "600") as session:
        until(lambda: in_bucket(project), seconds=60, what="the run to outlive the idle limit")
        until(lambda: "succeeded" in project.hvdcloud("status").out, seconds=60, what="the end of the run")
        with pytest.raises(subprocess.TimeoutExpired):
            session.wait(timeout=1.5 * limit)
        assert states(engine, project) == {"running"}, "node 0 is idle, but node 1 is not"
    until(lambda: ended(engine, project), seconds=60, what="both nodes to end")

    # The head decided for both.
    assert SAYS.search(said(engine, "t-idle-0"))
    assert "idle for" not in said(engine, "t-idle-1")
    again = project.hvdcloud("run", expect=5).err
    assert "the nodes of cluster t-idle have ended themselves; their log says: idle for " in again
    assert re.search(r"idle for \d+ (s|min): no run, no SSH session", again)
    assert "hvdcloud down and up again" in again
    assert "succeeded" in project.hvdcloud("status").out, "what is known of the run is in the bucket"
    (run_pulled,) = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert (run_pulled["files"], run_pulled["complete"]) == (2, True)
    project.hvdcloud("down")


def test_nodes_whose_head_is_dead_end_by_themselves(left_alone: tuple[Project, Project], engine: Any) -> None:
    headless, _ = left_alone
    until(lambda: ended(engine, headless), seconds=60, what="the other node to end")
    assert SAYS.search(said(engine, f"{headless.name}-1"))


def test_nodes_end_that_no_laptop_ever_made_a_cluster_of(left_alone: tuple[Project, Project], engine: Any) -> None:
    _, orphaned = left_alone
    until(lambda: ended(engine, orphaned), seconds=60, what="both nodes to end")
    for index in (0, 1):
        assert SAYS.search(said(engine, f"{orphaned.name}-{index}"))


def test_a_node_whose_checkpoints_are_not_in_the_bucket_stays_and_tries_until_they_are(
    project: Project, engine: Any
) -> None:
    project.hvdcloud("up", "--nodes", "1")
    bucket = project.state / project.name / "bucket"
    script = 'echo up; until [ -e /tmp/go ]; do sleep 0.1; done; echo w > "$HVDCLOUD_CHECKPOINT_DIR/w.pt"'
    with project.started("run", "--", "sh", "-c", script) as run:
        Screen(run).wait_for("[0] up")
        (folder,) = until(
            lambda: list(bucket.glob(f"{project.name}/*")), seconds=30, what="the run's folder in the bucket"
        )
        # Where it has to be, there is a file.
        folder.rename(bucket / "elsewhere")
        folder.write_text("in the way")
        code, output = engine.containers.get("t-idle-0").exec_run(["touch", "/tmp/go"])
        assert code == 0, output
        run.wait(timeout=90)
    refused = re.compile(
        r"^hvdcloud: idle for .*; but checkpoints of run \S+ are not in the bucket yet: ", re.MULTILINE
    )
    until(lambda: refused.search(said(engine, "t-idle-0")), seconds=60, what="the node to say why it stays")
    assert states(engine, project) == {"running"}
    folder.unlink()
    (bucket / "elsewhere").rename(folder)
    until(lambda: ended(engine, project), seconds=60, what="the node to end")
    assert (folder / "w.pt").read_text() == "w\n"


def test_null_means_never(tmp_path: Path, engine: Any, image: str) -> None:
    project = project_in(tmp_path, "t-idle-never", limits={"idle": None})
    planned = project.hvdcloud("up", "--dry-run", "--json").json["result"]["requests"]
    assert not any("HVDCLOUD_IDLE" in request["body"].get("environment", {}) for request in planned)
