"""Clusters of other sizes than two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import jobs
from tests.support.harness import Project, labelled, processes_in

pytestmark = pytest.mark.engine


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    project = Project(folder=tmp_path / "project", state=tmp_path / "state", name="t-sizes")
    project.folder.mkdir()
    project.write("requirements.txt", "scikit-learn\n")
    project.write("train.py", jobs.ALLREDUCE)
    project.configure()
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


def sums(out: str) -> dict[int, tuple[int, int]]:
    """What each rank printed: the number of ranks, and the sum."""
    found = re.findall(r"^\[(\d+)\] rank \1 of (\d+) sums (\d+)$", out, flags=re.MULTILINE)
    return {int(rank): (int(size), int(total)) for rank, size, total in found}


def ranks(project: Project, *options: str) -> list[str]:
    """What each rank of a run without Horovod printed: its node, its number and how many there are."""
    out = project.hvdcloud("run", *options, "--", "sh", "-c", "echo $(hostname) $HOROVOD_RANK $HOROVOD_SIZE").out
    return sorted(re.findall(r"^\[\d+\] (.*)$", out, flags=re.MULTILINE))


def test_eight_nodes_come_up_run_a_rank_each_and_go(project: Project, engine: Any) -> None:
    up = project.hvdcloud("up", "--nodes", "8", "--json").json["result"]
    assert [node["name"] for node in up["nodes"]] == [f"t-sizes-{index}" for index in range(8)]
    assert ranks(project) == [f"t-sizes-{index} {index} 8" for index in range(8)]
    assert sums(project.hvdcloud("run", "-np", "3").out) == dict.fromkeys(range(3), (3, 3))
    for index in range(8):
        assert processes_in(engine, f"t-sizes-{index}", ["train.py"]) == []
    # Every node reaches every other one, not only the head.
    assert project.hvdcloud("ssh", "7", "--", "ssh", "t-sizes-3", "hostname").out == "t-sizes-3\n"
    down = project.hvdcloud("down", "--json").json["result"]
    assert len(down["deleted"]) == 9
