"""Scripts for other libraries: Accelerate, JAX, and Accelerate's own test of gradients, which nobody here wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, brought_up, project_in
from tests.support.project_runs import pulled

# What they need is installed from PyPI.
pytestmark = [pytest.mark.engine, pytest.mark.nightly]

EXAMPLES = Path(__file__).parents[1] / "examples" / "each"
ACCELERATE = (
    "accelerate launch --multi_gpu --num_machines $HVDCLOUD_NODES --machine_rank $HVDCLOUD_NODE_RANK "
    "--num_processes $HVDCLOUD_NODES --main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT "
    "--mixed_precision no --dynamo_backend no accelerate_train.py"
)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> Iterator[Project]:
    run = {"launcher": "each", "command": ACCELERATE}
    project = project_in(tmp_path_factory.mktemp("others"), "t-others", nodes=2, run=run)
    project.write("requirements.txt", "accelerate\njax\n")
    for script in EXAMPLES.glob("*.py"):
        project.write(script.name, script.read_text())
    with brought_up(project, engine, timeout=1800):
        yield project


def learned(out: str) -> None:
    """Five epochs on two processes, with a loss that falls."""
    losses = [float(loss) for loss in re.findall(r"\[0\] epoch \d/5: loss (\d\.\d+), 2 processes", out)]
    assert len(losses) == 5
    assert losses[-1] < losses[0] / 2


def test_accelerate_launch_starts_itself_on_every_node(project: Project) -> None:
    learned(project.hvdcloud("run", "--fresh").out)
    assert {f"epoch-{epoch}.pt" for epoch in range(1, 6)} <= pulled(project)


def test_jax_finds_the_other_processes(project: Project) -> None:
    learned(project.hvdcloud("run", "--fresh", "--", "python", "jax_train.py").out)


def test_accelerates_own_test_of_gradients_passes_under_torchrun(project: Project) -> None:
    project.configure(nodes=2, run={"launcher": "torchrun", "env": {"ACCELERATE_USE_CPU": "true"}})
    out = project.hvdcloud("run", "--fresh", "--", "python", "-m", "accelerate.test_utils.scripts.test_sync").out
    assert "[0] **Test Distributed `no_sync` context manager**" in out, out[-3000:]
