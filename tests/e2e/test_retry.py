"""`run.retry` on this machine: nodes that are lost, and a client that dies at every step between two attempts."""

from __future__ import annotations

import json
import re
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import jobs
from tests.support.harness import Project, Screen, freeze, labelled, looking, project_in
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
        screen.end()
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
        screen.end()
    assert process.returncode == 9, screen.text
    assert "is not tried again" in screen.text
    assert f"node {worker.name} is frozen and may hold more" in screen.text
    worker.unpause()
    assert "is in attempt 2" in project.hvdcloud("run").out
    assert files(1) <= pulled(project) | {path.name for path in project.state.rglob("*.pt")}


# --- a client that dies ----------------------------------------------------------------------------------------------


def journal(project: Project) -> list[str]:
    """The events so far."""
    path = project.state / project.name / "journal.jsonl"
    return [json.loads(line)["event"] for line in path.read_text().splitlines() if line.endswith("}")]


def lost_and_killed(project: Project, engine: Any, step: str) -> None:
    """A run whose second node is lost, and whose client is killed once it has begun this step between two attempts."""
    project.hvdcloud("up")
    before = len(journal(project))
    with project.started("run") as process:
        screen = Screen(process)
        screen.wait_for("is in attempt 1", times=2)
        engine.containers.get(f"{project.name}-1").kill()
        while process.poll() is None:
            # `until` looks too rarely: a step may take a few milliseconds.
            time.sleep(0.005)
            with looking(process):
                if step in journal(project)[before:]:
                    process.kill()
                    break
        screen.end()
        assert process.returncode == -signal.SIGKILL, screen.text


def shown(project: Project) -> list[str]:
    """The nodes that `list` shows."""
    clusters = project.hvdcloud("list", "--json").json["result"]
    return sorted(node["name"] for each in clusters if each["name"] == project.name for node in each["nodes"])


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["created", "down", "down-done", "up", "up-done"])
def test_nothing_is_lost_or_left_where_a_client_is_killed_between_two_attempts(
    project: Project, engine: Any, step: str
) -> None:
    lost_and_killed(project, engine, step)
    # The engine may still create what the killed client had asked it for: `list` is asked first.
    listed = set(shown(project))
    assert listed <= {each.partition(" ")[2].removeprefix("/") for each in labelled(engine, project.name)}
    project.hvdcloud("down")
    assert labelled(engine, project.name) == []
    (first,) = {path.parts[-2] for path in (project.folder / "checkpoints").glob("*/*.pt")}
    project.hvdcloud("up")
    assert "is in attempt 2" in project.hvdcloud("run", "--resume", first).out
    assert files(1) <= {path.name for path in (project.folder / "checkpoints").rglob("*.pt")}
