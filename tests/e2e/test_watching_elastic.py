"""An elastic run that loses a node and gets it back, as status, top and report show it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.storage.folder import FolderBucket
from tests.support.harness import Project, Screen, labelled, project_in, until
from tests.support.terminal import terminal

pytestmark = pytest.mark.engine

TRAINS = """
import os, time
import horovod.torch as hvd
import torch

hvd.init()


@hvd.elastic.run
def train(state):
    while True:
        state.epoch += 1
        if hvd.rank() == 0:
            print(f"epoch {state.epoch}/10000: loss 0.5, {1000 * hvd.size()} images/s", flush=True)
        time.sleep(0.3)
        state.commit()
        # No rank leaves before the others do: the one that sees that it is enough tells them.
        if hvd.allreduce(torch.tensor([float(os.path.exists("/tmp/enough"))]), name="enough").item():
            return


train(hvd.elastic.TorchState(epoch=0))
print("done", flush=True)
"""


@pytest.fixture
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    project = project_in(
        tmp_path_factory.mktemp("elastic"),
        "t-e-elastic",
        run={
            "elastic": {"min": 1},
            "command": "python train.py",
            # The second one is how long a node that is ready waits after a loss.
            "env": {"HOROVOD_CYCLE_TIME": "30", "HOROVOD_GLOO_TIMEOUT_SECONDS": "30"},
        },
    )
    project.write("train.py", TRAINS)
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


def newest_run(project: Project) -> dict[str, Any]:
    run: dict[str, Any] = project.hvdcloud("status", "--json").json["result"]["runs"][-1]
    return run


def test_a_loss_and_a_return_are_seen_in_every_view(project: Project, engine: Any) -> None:
    project.hvdcloud("up")
    bucket = FolderBucket(project.state / project.name / "bucket")
    with project.started("run") as running:
        run_screen = Screen(running)
        run_screen.wait_for("2000 images/s", times=3)
        with terminal(project, "top") as top:
            top.wait_for(lambda text: "2 ranks" in text and "images/s" in text, seconds=40)
            assert "in the run" not in top.text
            name = f"{project.name}-1"
            samples = f"{project.name}/{newest_run(project)['run']}/.hvdcloud/samples-1.jsonl"
            until(lambda: bucket.stat(samples), seconds=60, what="samples of the node that will be lost")
            first = bucket.read(samples).splitlines()[0]
            # The attached client replaces what is gone: not before the screen has shown it.
            running.send_signal(signal.SIGSTOP)
            engine.containers.get(name).kill()
            top.wait_for(lambda text: "in the run: lost" in text, seconds=60)
            top.wait_for(lambda text: "1 of 2 ranks" in text, seconds=60)
            running.send_signal(signal.SIGCONT)
            run_screen.wait_for(" 1000 images/s", times=2)
            until(lambda: newest_run(project)["world"] == 2, seconds=300, what="all ranks to train again")
            top.wait_for(lambda text: "of 2 ranks" not in text and "in the run" not in text, seconds=60)
            top.press("q")
            assert top.process.wait(timeout=40) == 0
        run = newest_run(project)
        assert run["ranks"] == 2
        members = {member["name"]: member for member in run["members"]}
        assert {member["state"] for member in members.values()} == {"listed"}
        assert members[name]["alias"] == f"{name}-g2"
        text = project.hvdcloud("status").out
        assert f"run {run['run']} continues with 2 ranks" in text
        assert f"{name}-g2" in text
        for node in members:
            engine.containers.get(node).exec_run(["touch", "/tmp/enough"])
        run_screen.end(within=60)
        assert running.returncode == 0, run_screen.text
    assert "has no rank 2\n  → its ranks may be 0 to 1" in project.hvdcloud("logs", "--rank", "2", expect=2).err
    # What the first machine of that name had said is still there, before what the second one said.
    kept = bucket.read(samples).splitlines()
    assert kept[0] == first
    assert len(kept) > 2
    project.hvdcloud("down")
    told = project.hvdcloud("report", "--to", "run.html").out
    assert re.fullmatch(rf"✓ run \S+, succeeded · \d+ samples of \d nodes · .* → {project.folder}/run.html\n", told)
    html = Path(project.folder / "run.html").read_text()
    for said in (
        "World size",
        "1 to 2 ranks",
        f"lost a node: {name}",
        f"node joins: {name}",
        "1 to 2 nodes",
        "Images/s",
    ):
        assert said in html, said
