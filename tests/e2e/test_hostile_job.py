"""A job that attacks the machine that its checkpoints are pulled to, in a real run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import load_manifests
from hvdcloud.storage.checksum import crc32c_of_file
from hvdcloud.storage.open import open_bucket
from tests.support.harness import Project, labelled, leaves_nothing, project_in

pytestmark = pytest.mark.engine

MINE = "print('my own program')\n"

# Repositories among its checkpoints; beside its run in the bucket's folder, what is no run, and what leads elsewhere.
ATTACK = """
set -e
cd "$HVDCLOUD_CHECKPOINT_DIR"
mkdir -p .git a/objects a/refs .hvdcloud
for name in .git/config a/HEAD a/objects/x a/refs/x .hvdcloud/log a/model.pt good.pt; do echo $name > $name; done
bucket=/var/lib/hvdcloud/bucket/t-hostile
run="$bucket/$(basename "$PWD")"
mkdir -p "$bucket/train.py" "$run/.hvdcloud"
echo evil > "$bucket/train.py/x"
ln -s /etc "$bucket/20200101-000000-abcdef"
mkfifo "$run/.hvdcloud/manifest-7.json" "$run/fifo"
echo done
"""


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A project of one node whose cluster is not up, and of which nothing is left after the test."""
    project = project_in(tmp_path, "t-hostile", nodes=1)
    project.write("train.py", MINE)
    with leaves_nothing(project, engine):
        yield project


def test_a_job_that_writes_repositories_and_links_gets_nothing_but_its_checkpoints_out(
    project: Project, engine: Any
) -> None:
    ended = project.hvdcloud("launch", "-np", "1", "--", "sh", "-c", ATTACK)
    assert labelled(engine, project.name) == []
    assert ".git/config: not uploaded, since it would make its folder a repository" in ended.out
    assert "a/HEAD and 2 more: not uploaded, since" in ended.out
    assert ".hvdcloud/log: not uploaded, since" in ended.out
    pulled = project.folder / "checkpoints"
    (run,) = (path for path in pulled.iterdir() if path.is_dir())
    files = {str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()}
    assert files == {"a/model.pt", "good.pt"}
    project.hvdcloud("pull")
    assert (project.folder / "train.py").read_text() == MINE
    refused = project.hvdcloud("pull", "--to", str(project.folder), expect=2)
    assert "holds other files than pulled checkpoints" in refused.err
    bucket = open_bucket((project.state / project.name / "bucket").as_uri())
    (manifest,) = load_manifests(bucket, cluster=project.name, run=run.name)
    assert manifest.complete
    for entry in manifest.files:
        assert (entry.size, entry.crc32c) == crc32c_of_file(run / entry.name)
