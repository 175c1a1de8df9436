"""The template `keras` on two nodes: it learns, all ranks agree, and it resumes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, labelled, leaves_nothing, project_in

pytestmark = [pytest.mark.engine, pytest.mark.nightly]

FINAL = re.compile(r"✓ t-keras trained: accuracy (\d\.\d+) · .* · \$0 · 14 checkpoints → /")
LOADS = """
import tensorflow as tf
from pathlib import Path
for path in sorted(Path("/pulled").glob("checkpoint-*.keras")):
    tf.keras.models.load_model(path, compile=False)
    print(path.name)
"""


@pytest.fixture
def project(tmp_path: Path, engine: Any, tensorflow_image: str) -> Iterator[Project]:
    """The template as `init` writes it, with a cluster that is not up, and of which nothing is left after the test."""
    project = project_in(tmp_path, "t-keras")
    for path in project.folder.iterdir():
        path.unlink()
    project.hvdcloud("init", "--template", "keras", "--name", project.name)
    # What the image of these tests has.
    project.write("requirements.txt", "scikit-learn\n")
    with leaves_nothing(project, engine):
        yield project


def test_the_template_learns_and_its_checkpoints_are_pulled(
    project: Project, engine: Any, tensorflow_image: str
) -> None:
    ended = project.hvdcloud("launch")
    assert labelled(engine, project.name) == []
    found = FINAL.search(ended.out)
    assert found, ended.out
    assert float(found[1]) >= 0.97
    assert "[0] weights are equal on 2 ranks" in ended.out.splitlines()
    (folder,) = (path for path in (project.folder / "checkpoints").iterdir() if path.is_dir())
    volumes = {str(folder): {"bind": "/pulled", "mode": "ro"}}
    loaded = engine.containers.run(tensorflow_image, ["-c", LOADS], entrypoint="python", volumes=volumes, remove=True)
    assert loaded.decode().split() == [f"checkpoint-{epoch:03}.keras" for epoch in range(1, 13)]
