"""A run that is watched while it lasts, and read about when everything of it is gone."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.lifecycle.top import SILENT_SECONDS
from hvdcloud.storage.folder import FolderBucket
from tests.support.harness import Project, Screen, labelled, project_in, until
from tests.support.terminal import terminal

pytestmark = pytest.mark.engine

TRAINS = """
import os, time
from pathlib import Path

rank = int(os.environ["HOROVOD_RANK"])
folder = Path(os.environ["HVDCLOUD_CHECKPOINT_DIR"])
for epoch in range(1, 10_000):
    print(f"epoch {epoch:2d}/10000: loss {1 / epoch:.3f}, accuracy 0.9, {4000 + epoch} images/s", flush=True)
    if rank == 0 and epoch == 3:
        (folder / "three.pt").write_text("weights")
    time.sleep(0.2)
    if os.path.exists("/tmp/enough"):
        break
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    project = project_in(tmp_path_factory.mktemp("watching"), "t-watching")
    yield project
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


def silent(text: str) -> list[int]:
    """For how many seconds nodes have not answered, as the screen says."""
    return [int(seconds) for seconds in re.findall(r"no answer for (\d+) s", text)]


def test_a_run_is_watched_sampled_and_reported(project: Project, engine: Any) -> None:
    project.hvdcloud("up")
    project.write("train.py", TRAINS)
    bucket = FolderBucket(project.state / project.name / "bucket")
    with project.started("status", "--watch") as watching:
        watched = Screen(watching)
        run = project.hvdcloud("run", "--detach", "--json", "--", "python", "train.py").json["result"]["run"]
        with terminal(project, "top") as top:
            # All of it in one screen: one that is just drawn again has not every part of it.
            shown = ("t-watching-1", "images/s", run, "costs nothing", "[0] epoch")
            top.wait_for(lambda text: all(each in text for each in shown) and text.count(" GB ") >= 2)
            # A node that stops answering while its machine runs.
            sshd = "for p in $(pgrep sshd); do kill -{} $p; done"
            container = engine.containers.get("t-watching-1")
            container.exec_run(["sh", "-c", sshd.format("STOP")])
            try:
                # It is one node only, once a busy machine has answered for the other; and the seconds are counted on.
                top.wait_for(lambda text: len(silent(text)) == 1)
                first = silent(top.text)
                assert min(first) > SILENT_SECONDS
                top.wait_for(lambda text: len(silent(text)) == 1 and silent(text) > first)
            finally:
                container.exec_run(["sh", "-c", sshd.format("CONT")])
            top.press("q")
            assert top.process.wait(timeout=40) == 0
        with terminal(project, "status", "--watch") as drawn:
            drawn.wait_for(lambda text: "t-watching-1" in text and run in text and "cost so far" in text)
            drawn.process.send_signal(signal.SIGINT)
            code, printed = drawn.end()
            assert code == 0, printed
        with project.started("logs", "--follow", "--rank", "1") as following:
            followed = Screen(following)
            followed.wait_for("[1] epoch", times=3)
            for node in ("t-watching-0", "t-watching-1"):
                engine.containers.get(node).exec_run(["touch", "/tmp/enough"])
            followed.end()
            lines = followed.text.splitlines()
            assert {line[:4] for line in lines if line.startswith("[")} == {"[1] "}
            assert any("succeeded" in line for line in lines)
        watched.wait_for("succeeded")
        watching.send_signal(signal.SIGINT)
        watched.end()
        assert watching.returncode == 0, watched.text
        assert "running" in watched.text
    assert "has no rank 2\n  → its ranks are 0 to 1" in project.hvdcloud("logs", "--rank", "2", expect=2).err
    for index in (0, 1):
        name = f"{project.name}/{run}/.hvdcloud/samples-{index}.jsonl"
        assert until(partial(bucket.stat, name), what=name)
    pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert [entry["files"] for entry in pulled if entry["run"] == run] == [1]
    project.hvdcloud("down")
    assert labelled(engine, project.name) == []

    kept = project.hvdcloud("logs", run, "--rank", "0").out
    assert kept
    assert all(line.startswith("[0] ") for line in kept.splitlines())
    assert "top needs a terminal" in project.hvdcloud("top", expect=2).err
    # Without an engine, too: the bucket is all that it needs.
    project.environ = {"DOCKER_HOST": f"unix://{project.folder}/none"}
    try:
        result = project.hvdcloud("report", "--to", "run.html", "--json").json["result"]
    finally:
        project.environ = {}
    assert (result["run"], result["result"], result["nodes_sampled"]) == (run, "succeeded", 2)
    html = (project.folder / "run.html").read_text()
    for said in ("CPU utilisation", "Images/s", "three.pt", "client attached", "every node is ready"):
        assert said in html
    assert Path(result["path"]) == project.folder / "run.html"
