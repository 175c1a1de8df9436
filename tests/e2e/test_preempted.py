"""Nodes with a notice that they are about to go: what they have written is in the bucket before they are gone."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import jobs
from tests.support.harness import Project, Screen, brought_up, project_in, until
from tests.support.project_runs import in_bucket, last_run, on_disk, pulled

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

STOP_SECONDS = 60
"""After which the engine kills a container; one that ends by itself needs a few."""
KILLED = 137
"""The exit code then."""


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A cluster of two nodes whose checkpoints do not leave them by themselves while they train."""
    name = f"t-c-{secrets.token_hex(2)}"
    project = project_in(tmp_path, name, checkpoints={"keep_every": 600.0})
    project.write("train.py", jobs.ENDLESS)
    with brought_up(project, engine):
        yield project


def exit_code(engine: Any, node: str) -> int:
    """How a node's container ended."""
    return int(engine.containers.get(node).attrs["State"]["ExitCode"])


@pytest.mark.parametrize("index", [0, 1])
def test_a_container_that_is_stopped_takes_no_whole_file_with_it(project: Project, engine: Any, index: int) -> None:
    node = f"{project.name}-{index}"
    with project.started("run", "--", "python", "train.py", "0", "1") as process:
        screen = Screen(process)
        screen.wait_for("trains\n", times=2)
        until(lambda: len(on_disk(engine, project.name, index)) >= 3, what="checkpoints")
        written = on_disk(engine, project.name, index)
        assert not written <= in_bucket(project), "nothing but its end makes the node upload"
        engine.containers.get(node).stop(timeout=STOP_SECONDS)
        screen.end()
    assert exit_code(engine, node) != KILLED
    assert written <= in_bucket(project)
    said = engine.containers.get(node).logs().decode()
    assert re.search(
        rf"^hvdcloud: run \S+: node {node}: all \d+ files are in the bucket \(\d+\.\d s", said, re.MULTILINE
    )
    if index == 1:
        assert process.returncode == 7
        assert f"node {node} is being shut down: its checkpoints are being uploaded" in screen.text
        assert re.search(rf"node {node}: all \d+ files are in the bucket \(\d+\.\d s after the notice\)", screen.text)
        run = last_run(project)
        assert run["state"] == "lost"
        assert run["reason"] == f"the head says: node {node} ended its part of the run: it is being shut down"
        assert run["checkpoints_complete"], "the other node's too"
        assert written <= pulled(project)
