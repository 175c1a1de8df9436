"""`limits.idle` on this machine: idle nodes end themselves, without a client."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, labelled, project_in, until
from tests.support.idle import age, aged
from tests.support.project_runs import in_bucket

pytestmark = pytest.mark.engine

LIMIT = 1800.0
"""Seconds, which no test waits for: the activity of nodes is made older."""
SAYS = re.compile(r"^hvdcloud: idle for \d+ (?:s|min): no run, no SSH session; switching off$", flags=re.MULTILINE)


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A project whose nodes end when they are idle, and of which nothing is left after the test."""
    project = project_in(tmp_path, "t-idle", limits={"idle": LIMIT})
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


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


def test_nodes_end_after_the_last_session_and_the_last_run_and_not_before(project: Project, engine: Any) -> None:
    project.hvdcloud("up")
    nodes = ("t-idle-0", "t-idle-1")
    run = 'until [ -e /tmp/go ]; do sleep 0.1; done; echo weights > "$HVDCLOUD_CHECKPOINT_DIR/last.pt"'
    project.hvdcloud("run", "--detach", "--", "sh", "-c", run)
    with project.started("ssh", "1", "--", "sleep", "600"):
        assert age(engine, *nodes)
        until(lambda: not any(aged(engine, node) for node in nodes), what="run and session to be seen as activity")
        for node in nodes:
            engine.containers.get(node).exec_run(["touch", "/tmp/go"])
        until(lambda: "succeeded" in project.hvdcloud("status").out, what="the end of the run")
        until(lambda: in_bucket(project), what="its checkpoint in the bucket")
        assert age(engine, *nodes)
        until(lambda: not aged(engine, "t-idle-1"), what="the session to be seen as activity")
        assert states(engine, project) == {"running"}, "node 0 may be idle, but node 1 is not"
    until(lambda: age(engine, *nodes) and ended(engine, project), what="both nodes to end")

    # The head decided for both.
    assert SAYS.search(said(engine, "t-idle-0"))
    assert "idle for" not in said(engine, "t-idle-1")
    again = project.hvdcloud("run", expect=5).err
    assert "all nodes of cluster t-idle have stopped: nodes end themselves " in again
    assert "hvdcloud down and up again" in again
    assert "succeeded" in project.hvdcloud("status").out, "what is known of the run is in the bucket"
    (run_pulled,) = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert (run_pulled["files"], run_pulled["complete"]) == (2, True)
    project.hvdcloud("down")
