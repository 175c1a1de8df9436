"""`hvdcloud launch`: the whole life of one experiment, and what may come between."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import load_manifests
from hvdcloud.storage.checksum import crc32c_of_file
from hvdcloud.storage.open import open_bucket
from tests.support.harness import Project, Screen, labelled, leaves_nothing, project_in, receives_files, until

pytestmark = pytest.mark.engine

WRITES = 'for name in a b c; do head -c 200000 /dev/urandom > "$HVDCLOUD_CHECKPOINT_DIR/$name.pt"; sleep 0.3; done'
WORKS = 'echo x > "$HVDCLOUD_CHECKPOINT_DIR/first.pt"; echo works; exec sleep 600'
LOADS = """
import sys, torch
from pathlib import Path
for number, path in enumerate(sorted(Path("/pulled").glob("checkpoint-*.pt")), start=1):
    assert torch.load(path, weights_only=True)["epoch"] == number, path
print(number)
"""


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A project whose cluster is not up, and of which nothing is left after the test."""
    project = project_in(tmp_path, "t-launch")
    with leaves_nothing(project, engine):
        yield project


def assert_pulled(project: Project, run: str) -> list[str]:
    """Every file that the run's manifests name is on this disk with the size and CRC32C that they name."""
    bucket = open_bucket((project.state / project.name / "bucket").as_uri())
    manifests = load_manifests(bucket, cluster=project.name, run=run)
    assert all(manifest.complete for manifest in manifests)
    entries = [entry for manifest in manifests for entry in manifest.files]
    for entry in entries:
        path = project.folder / "checkpoints" / run / entry.name
        assert crc32c_of_file(path) == (entry.size, entry.crc32c)
    return sorted(entry.name for entry in entries)


def test_the_template_lives_its_whole_life(project: Project, engine: Any, image: str) -> None:
    for path in project.folder.iterdir():
        path.unlink()
    project.hvdcloud("init", "--name", project.name)
    # What the image of these tests has.
    project.write("requirements.txt", "scikit-learn\n")
    # How well it is trained: test_template.py.
    ended = project.hvdcloud("launch", "--", "python", "train.py", "--epochs", "3")
    assert labelled(engine, project.name) == []
    *output, ending, gone, last = ended.out.splitlines()
    found = re.fullmatch(
        rf"✓ t-launch trained: accuracy \d\.\d+ · .* · \$0 · 3 checkpoints → ({project.folder}/checkpoints/(\S+))",
        last,
    )
    assert found, last
    assert gone.startswith("t-launch is gone: 3 objects deleted in ")
    assert gone.endswith("listing again found nothing left")
    # Standard output is the answer: what the ranks say and what came of it. The progress is elsewhere.
    assert all(line.startswith("[0] ") for line in output)
    assert ending == "[hvdcloud] switching off the nodes: the run has ended and its checkpoints are in the bucket"
    for step in ("t-launch-1: booting", "t-launch-1: ready", "container t-launch-0: deleted"):
        assert step in ended.err.splitlines()
    assert "[0]" not in ended.err
    names = assert_pulled(project, found[2])
    assert names == [f"checkpoint-{epoch:03}.pt" for epoch in (1, 2, 3)]
    volumes = {found[1]: {"bind": "/pulled", "mode": "ro"}}
    loaded = engine.containers.run(image, ["-c", LOADS], entrypoint="python", volumes=volumes, remove=True)
    assert loaded.decode().strip() == "3"
    assert (project.folder / "checkpoints" / ".gitignore").exists()


def test_a_job_that_fails_is_pulled_and_torn_down_all_the_same(project: Project, engine: Any) -> None:
    # One rank fails: Horovod ends the others at once, whatever they have written by then.
    fails = f'{WRITES}; [ "$HOROVOD_RANK" = 1 ] || exit 3; exec sleep 600'
    ended = project.hvdcloud("launch", "--json", "--", "sh", "-c", fails, expect=7)
    assert labelled(engine, project.name) == []
    document = ended.json
    assert document["exit_code"] == 7
    assert document["result"]["run"]["exit_code"] == 3
    assert document["result"]["run"]["state"] == "failed"
    assert document["result"]["down"]["deleted"]
    assert "exited with 3" in document["error"]["message"]
    assert "hvdcloud logs" not in document["error"]["hint"], "its log is gone with the nodes"
    assert {"a.pt", "b.pt", "c.pt"} <= set(assert_pulled(project, document["result"]["run"]["run"]))


def test_a_launch_whose_nodes_cannot_come_up_leaves_nothing(project: Project, engine: Any, image: str) -> None:
    stranger = engine.containers.create(image, name="t-launch-1", entrypoint="true")
    try:
        project.hvdcloud("launch", expect=2)
    finally:
        stranger.remove()
    assert labelled(engine, project.name) == []


def test_ctrl_c_in_the_run_detaches_and_says_how_to_come_back(project: Project, engine: Any) -> None:
    with project.started("launch", "--", "sh", "-c", WORKS) as process:
        screen = Screen(process)
        screen.wait_for("works", times=2)
        process.send_signal(signal.SIGINT)
        screen.end()
    assert process.returncode == 130
    assert "continues, and then its nodes end themselves" in screen.text
    assert "error" not in screen.text
    assert "hvdcloud logs -f" in screen.text
    run = project.hvdcloud("status", "--json").json["result"]["runs"][-1]
    assert run["state"] == "running"
    project.hvdcloud("stop")
    project.hvdcloud("pull")
    assert assert_pulled(project, run["run"]) == ["@node-1/first.pt", "first.pt"]
    project.hvdcloud("down")


def test_ctrl_c_before_the_run_has_begun_deletes_what_was_made(project: Project, engine: Any) -> None:
    (project.folder / "large.bin").write_bytes(os.urandom(1 << 20) * 60)

    def receives_code() -> bool:
        running = engine.containers.list(ignore_removed=True, filters={"name": "t-launch-1"})
        return bool(running and receives_files(engine, "t-launch-1"))

    with project.started("launch", "--", "true") as process:
        screen = Screen(process)
        until(receives_code, what="the code to be on its way")
        process.send_signal(signal.SIGINT)
        screen.end()
    assert labelled(engine, project.name) == []
    assert process.returncode == 130
    assert "everything that it had made is deleted" in screen.text


# --- run --down-when-done ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ending", "code"), [pytest.param("", 0, marks=pytest.mark.nightly), ("; exit 3", 7)])
def test_run_down_when_done_pulls_and_deletes_whatever_the_jobs_result(
    project: Project, engine: Any, ending: str, code: int
) -> None:
    project.configure(nodes=1, checkpoints={"keep_every": 0.2})
    project.hvdcloud("up")
    command = ("run", "--down-when-done", "--", "sh", "-c", WRITES + ending)
    ended = project.hvdcloud(*command, expect=code)
    assert labelled(engine, project.name) == []
    found = re.search(r"3 checkpoint(?: files|s) .*(\d{8}-\d{6}-[0-9a-f]{6})$", ended.out, re.MULTILINE)
    assert found, ended.out
    assert assert_pulled(project, found[1]) == ["a.pt", "b.pt", "c.pt"]
    assert "t-launch is gone" in ended.out


def test_nodes_end_themselves_after_the_run_when_no_client_is_attached(project: Project, engine: Any) -> None:
    project.hvdcloud("up")
    project.hvdcloud("run", "--detach", "--down-when-done", "--", "sh", "-c", WRITES)

    def all_stopped() -> bool:
        clusters = project.hvdcloud("list", "--json").json["result"]
        nodes = [node for found in clusters if found["name"] == project.name for node in found["nodes"]]
        return {node["state"] for node in nodes} == {"stopped"}

    until(all_stopped, what="both nodes to end themselves")
    assert "not pulled" in project.hvdcloud("down", expect=9).err
    pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
    assert [(entry["files"], entry["complete"]) for entry in pulled] == [(6, True)]
    project.hvdcloud("down")
    assert labelled(engine, project.name) == []
