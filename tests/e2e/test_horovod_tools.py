"""What Horovod's own tools, asked for in `run.env`, write on rank 0's node comes back with the checkpoints."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Project, labelled, project_in

pytestmark = pytest.mark.engine

STEPS = 60

TRAINS = f"""
import horovod.torch as hvd
import torch

hvd.init()
for step in range({STEPS}):
    handles = [hvd.allreduce_async_(torch.ones(1000), name=f"layer{{layer}}") for layer in range(3)]
    for handle in handles:
        hvd.synchronize(handle)
print(f"rank {{hvd.rank()}} has done {STEPS} steps")
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    # A sample every two steps of three reductions instead of every ten, so that a short run gets through some.
    quick = {"HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1", "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "2"}
    tools = {"HOROVOD_TIMELINE": "timeline.json", "HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_LOG": "autotune.csv"}
    project = project_in(tmp_path_factory.mktemp("tools"), "t-e-tools", run={"env": {**quick, **tools}})
    project.write("train.py", TRAINS)
    project.hvdcloud("up")
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


def pulled(project: Project) -> Path:
    """What the newest run has written in the project's folder."""
    (run,) = project.hvdcloud("pull", "--json").json["result"]["runs"][-1:]
    return Path(run["folder"], "workspace")


def timeline_in(folder: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads((folder / "timeline.json").read_text())
    return events


@pytest.mark.parametrize("controller", ["gloo", pytest.param("mpi", marks=pytest.mark.nightly)])
def test_timeline_and_autotuning_come_back_with_the_checkpoints(project: Project, controller: str) -> None:
    run = project.hvdcloud("run", "--controller", controller, "--fresh", "--json", "--", "python", "train.py").json[
        "result"
    ]
    assert (run["state"], run["checkpoint_files"], run["checkpoints_complete"]) == ("succeeded", 2, True)
    folder = pulled(project)
    events = timeline_in(folder)
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and "name" in event.get("args", {})}
    assert {"layer0", "layer1", "layer2"} <= {name.rpartition(".")[2] for name in names}
    assert sum(event.get("name") == "ALLREDUCE" for event in events) >= STEPS
    # Begins and ends are in pairs, each with its time and its row: what chrome://tracing and Perfetto need.
    assert {event["ph"] for event in events} <= {"M", "B", "E", "X"}
    assert all("ts" in event and "pid" in event for event in events if event["ph"] != "M")
    with (folder / "autotune.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(float(row["score"]) > 0 and 1 <= float(row["cycle_time_ms"]) <= 100 for row in rows)


def test_the_timeline_of_a_rank_that_was_killed_is_whole_as_far_as_it_goes(project: Project) -> None:
    project.write("train.py", TRAINS.replace("print(", "import os; os.kill(os.getpid(), 9); print("))
    ended = project.hvdcloud("run", "--fresh", "--", "python", "train.py", expect=7)
    assert "137" in ended.err
    assert len(timeline_in(pulled(project))) > STEPS
