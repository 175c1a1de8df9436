"""Folders of this machine as data sets of two containers: mounted, read-only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, brought_up, labelled, project_in

pytestmark = pytest.mark.engine

READS = (
    'cd "$HVDCLOUD_DATA"; echo "rank $HOROVOD_RANK has $(cat val/*)"; touch val/new 2>/dev/null && echo WROTE; '
    'rm -f val/one 2>/dev/null && echo REMOVED; echo "sets:" *'
)


@dataclass
class Mounted:
    """Two nodes that are up, and the folder with their data."""

    project: Project
    val: Path
    engine: Any

    def configure(self, **more: Path) -> None:
        data = {name: folder.as_uri() for name, folder in {"val": self.val, **more}.items()}
        self.project.configure(nodes=2, run={"command": f"sh -c '{READS}'"}, checkpoints={"keep_every": 0.2}, data=data)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Mounted]:
    root = tmp_path_factory.mktemp("data")
    (root / "val").mkdir()
    (root / "val" / "one").write_text("what is mounted")
    cluster = Mounted(project=project_in(root, "t-data"), val=root / "val", engine=engine)
    cluster.configure()
    with brought_up(cluster.project, engine):
        yield cluster


def test_a_folder_is_mounted_into_every_node_and_no_rank_can_change_it(cluster: Mounted) -> None:
    ran = cluster.project.hvdcloud("run")
    assert all(f"rank {rank} has what is mounted" in ran.out for rank in (0, 1))
    assert ran.out.count("sets: val") == 2
    assert "WROTE" not in ran.out
    assert "REMOVED" not in ran.out
    assert (cluster.val / "one").read_text() == "what is mounted"


def test_a_folder_that_is_named_later_is_mounted_by_the_next_up(cluster: Mounted, tmp_path: Path) -> None:
    cluster.configure(late=tmp_path)
    refused = cluster.project.hvdcloud("run", expect=5)
    assert f"data.late none → {tmp_path.as_uri()}" in refused.err
    assert "hvdcloud down && hvdcloud up applies it" in refused.err
    gone = tmp_path / "gone"
    cluster.configure(late=gone)
    asked = cluster.project.hvdcloud("up", "--name", "t-data-other", expect=2)
    assert f"the folder of data set late, {gone}, does not exist" in asked.err
    assert labelled(cluster.engine, "t-data-other") == []
