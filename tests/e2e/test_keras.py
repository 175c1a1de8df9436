"""The template `keras` on two nodes: it learns, all ranks agree, and it resumes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, labelled, project_in

pytestmark = pytest.mark.engine

FINAL = re.compile(r"✓ t-keras trained: accuracy (\d\.\d+) · .* · \$0 · 14 checkpoints → /")
# Rank 1 is late in every step; in all, ranks train for more than the ten seconds before one is named.
LATE = """
class Late(tf.keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        __import__("time").sleep(0.05 * hvd.rank())

callbacks = [
    Late(),
"""
# The second time, everything is done.
TWICE = """
import train

for _ in range(2):
    train.main()
"""
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
    yield project
    if labelled(engine, project.name):
        project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


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


def test_a_second_run_continues_also_on_another_number_of_ranks(project: Project) -> None:
    project.write("twice.py", TWICE)
    project.hvdcloud("up")
    project.hvdcloud("run", "--ranks", "1", "--", "python", "train.py", "--epochs", "2")
    out = project.hvdcloud("run", "--", "python", "twice.py", "--epochs", "8").out
    assert "[0] resumed from checkpoint-002.keras: 2 epochs are done" in out
    found = re.search(r"final: accuracy (\d\.\d+), \d+ images/s, 2 ranks", out)
    assert found, out
    assert float(found[1]) >= 0.95
    finished = out[found.end() :]
    assert "nothing left to train" in finished
    for part in (out[: found.start()], finished):
        assert "[0] weights are equal on 2 ranks" in part


def test_the_script_of_own_machines_scales_and_warms_up_its_rate_under_mpirun_and_a_slow_rank_is_named(
    project: Project,
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-machines.md").read_text()
    found = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert found
    script = found[1]
    for old, new in (
        ("EPOCHS, WARM_UP, BATCH = 0.02, 48,", "EPOCHS, WARM_UP, BATCH = 0.02, 12,"),
        ("\ncallbacks = [\n", LATE),
    ):
        assert old in script
        script = script.replace(old, new)
    project.write("train.py", script)
    project.configure(image={"framework": "tensorflow"}, run={"command": "python train.py", "controller": "mpi"})
    project.hvdcloud("up")
    slow = project.hvdcloud("run", "--json").json["result"]["slow_ranks"]
    assert (slow["ranks"], slow["nodes"]) == ([1], ["t-keras-1"])
    out = project.hvdcloud("logs").out
    assert "Epoch 6/6" in out
    assert "Epoch 7" not in out
    rates = [float(rate) for rate in re.findall(r" lr: (\d\.\d+)", out)]
    # From the rate of one rank to that of two in three epochs; later a plateau may halve it.
    assert rates[0] < rates[1] < rates[2] == max(rates) == 0.04
    accuracy = re.search(r"test: loss \d\.\d+, accuracy (\d\.\d+)", out)
    assert accuracy, out
    assert float(accuracy[1]) >= 0.9
    pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert [run["files"] for run in pulled] == [6]
