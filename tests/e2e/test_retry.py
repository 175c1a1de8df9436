"""`run.retry` on this machine: nodes that are lost."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import jobs
from tests.support.harness import Project, Screen, freeze, labelled, project_in
from tests.support.project_runs import pulled

pytestmark = pytest.mark.engine


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A project of two nodes; checkpoints leave them only at the end of a run."""
    name = f"t-retry-{secrets.token_hex(2)}"
    project = project_in(
        tmp_path,
        name,
        run={"command": "python train.py 1", "retry": 2},
        checkpoints={"keep_every": 600.0},
    )
    project.write("train.py", jobs.ATTEMPTS)
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, name) == []


def files(*attempts: int) -> set[str]:
    return {f"rank-{rank}-attempt-{attempt}.pt" for rank in (0, 1) for attempt in attempts}


@pytest.mark.parametrize(
    ("lost", "elastic", "launcher"),
    [(1, None, "torchrun"), pytest.param(0, {"min": 1}, "horovod", marks=pytest.mark.nightly)],
)
def test_launch_continues_on_new_nodes_when_one_was_killed(
    project: Project, engine: Any, torchrun_image: str, lost: int, elastic: dict[str, int] | None, launcher: str
) -> None:
    run = {"command": "python train.py 1", "retry": 2, "elastic": elastic, "launcher": launcher}
    project.configure(run=run, checkpoints={"keep_every": 600.0})
    with project.started("launch") as process:
        screen = Screen(process)
        screen.wait_for("is in attempt 1", times=2)
        engine.containers.get(f"{project.name}-{lost}").kill()
        screen.end(within=120)
    assert process.returncode == 0, screen.text
    said = screen.text[screen.text.index("attempt 1 was lost after") :].splitlines()[0]
    assert f"{project.name}-{lost}" in said
    assert re.search(r"; attempt 2 of at most 3 continues run [0-9a-f-]+; ", said)
    assert " left" in said
    assert screen.text.count("is in attempt 2") == 2
    assert " · 2 attempts · " in screen.text.splitlines()[-1]
    # What only the killed node had is there as well: it was started again for that.
    found = {path.name for path in (project.folder / "checkpoints").rglob("*.pt")}
    assert found == files(1, 2)
    beside = {path.name for path in (project.folder / "checkpoints").rglob("workspace/*.h5")}
    assert beside == {f"beside-{rank}-{attempt}.h5" for rank in (0, 1) for attempt in (1, 2)}
    assert labelled(engine, project.name) == []


def test_a_node_that_may_hold_more_is_not_deleted(project: Project, engine: Any) -> None:
    # A node is lost that says nothing for most of this.
    run = {"command": "python train.py 1", "retry": 2, "env": {"HOROVOD_GLOO_TIMEOUT_SECONDS": "10"}}
    project.configure(run=run, checkpoints={"keep_every": 600.0})
    project.hvdcloud("up")
    worker = engine.containers.get(f"{project.name}-1")
    with project.started("run") as process:
        screen = Screen(process)
        screen.wait_for("is in attempt 1", times=2)
        freeze(worker)
        screen.end(within=400)
    assert process.returncode == 9, screen.text
    assert "is not tried again" in screen.text
    assert f"node {worker.name} is frozen and may hold more" in screen.text
    worker.unpause()
    assert "is in attempt 2" in project.hvdcloud("run").out
    assert files(1) <= pulled(project) | {path.name for path in project.state.rglob("*.pt")}
