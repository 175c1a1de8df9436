"""Whatever is wrong with the input, the machine or the bucket is named, with the next command, and breaks nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import TEST_LABEL, Project, brought_up, labelled, leaves_nothing, project_in
from tests.support.trouble import small_disk, small_disk_in

pytestmark = pytest.mark.engine

# A rank that writes two checkpoints.
CHECKPOINTS = 'for name in a b; do head -c 300000 /dev/urandom > "$HVDCLOUD_CHECKPOINT_DIR/$name.pt"; done'
RUN = ("run", "--fresh", "-np", "1", "--", "sh", "-c")


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A project of one node whose cluster is not up, and is not after the test."""
    project = project_in(tmp_path, "t-bad", nodes=1)
    with leaves_nothing(project, engine):
        yield project


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    """A cluster of two nodes that is up, with the checkpoints of one run."""
    project = project_in(tmp_path_factory.mktemp("bad"), "t-bad-up")
    with brought_up(project, engine):
        project.hvdcloud("run", "--", "sh", "-c", CHECKPOINTS)
        yield project
        assert len(labelled(engine, project.name)) == 3, "no test took anything of it away"


def elsewhere(project: Project, root: Path) -> Project:
    """The same project on a machine that knows nothing of the first one's clusters."""
    return replace(project, state=root / "another machine")


# --- no files, no cluster -----------------------------------------------------------------------------


def test_down_twice_is_done_twice_and_a_foreign_container_on_our_network_survives(
    project: Project, engine: Any, image: str
) -> None:
    project.hvdcloud("up")
    stranger = engine.containers.run(
        image,
        ["300"],
        entrypoint="sleep",
        name="t-bad-stranger",
        network="hvdcloud-t-bad",
        init=True,
        detach=True,
        labels={TEST_LABEL: "stranger"},
    )
    try:
        assert "is gone" in project.hvdcloud("down").out
        assert "nothing to delete" in project.hvdcloud("down").out
        assert labelled(engine, project.name) == []
        stranger.reload()
        assert stranger.status == "running"
    finally:
        stranger.remove(force=True)


# --- names ---------------------------------------------------------------------------------------------------------


def test_a_cluster_that_another_machine_made_is_listed_and_kept_and_not_taken_over(
    cluster: Project, tmp_path: Path
) -> None:
    other = elsewhere(cluster, tmp_path)
    listed = {found["name"]: found for found in other.hvdcloud("list", "--json").json["result"]}
    assert [node["state"] for node in listed[cluster.name]["nodes"]] == ["running", "running"]
    assert listed[cluster.name]["owner"]
    for command in ("up", "run", "logs", "ssh"):
        refused = other.hvdcloud(command, expect=2)
        assert "was not finished from this machine (made by " in refused.err
        assert "use the machine that made it" in refused.err
    assert "not pulled" in other.hvdcloud("down", expect=9).err


@pytest.mark.parametrize("machines", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_of_two_ups_of_one_name_at_most_one_makes_a_cluster_and_it_is_whole(
    project: Project, engine: Any, tmp_path: Path, machines: int
) -> None:
    pair = [project, elsewhere(project, tmp_path) if machines == 2 else project]
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda one: one.hvdcloud("up", "--nodes", "2", "--json", expect=None), pair))
    for one in ended:
        assert one.exit_code in (0, 2), one.err
        assert "a bug" not in one.err
    winners = [one for one in ended if one.exit_code == 0 and one.json["result"]["created"]]
    listed = [found for found in project.hvdcloud("list", "--json").json["result"] if found["name"] == project.name]
    # Two machines may each take what the other one needs; then both are refused.
    assert len(winners) == 1 or (machines == 2 and not winners)
    assert [found["id"] for found in listed] == [one.json["result"]["id"] for one in winners]
    if not winners:
        assert labelled(engine, project.name) == []
        project.hvdcloud("up", "--nodes", "2")
    assert len(labelled(engine, project.name)) == 3
    winner = pair[ended.index(winners[0])] if winners else project
    assert winner.hvdcloud("ssh", "1", "--", "hostname").out == "t-bad-1\n"
    winner.hvdcloud("down")


# --- no space ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [pytest.param("4k", marks=pytest.mark.nightly), "12k", pytest.param("24k", marks=pytest.mark.nightly)]
)
def test_when_the_state_folders_disk_is_full_up_makes_all_or_nothing(project: Project, engine: Any, size: str) -> None:
    project.configure(nodes=1, checkpoints={"bucket": (project.folder.parent / "bucket").as_uri()})
    project.state.mkdir()
    ended = project.hvdcloud("up", expect=4, before=small_disk(project.state, f"size={size}"))
    assert f"no space left to write {project.state}/t-bad/" in ended.err
    assert "HVDCLOUD_STATE_DIR" in ended.err
    assert labelled(engine, project.name) == []


@pytest.mark.parametrize("options", ["size=4k,nr_inodes=1", "ro"], ids=["full", "read-only"])
def test_down_deletes_all_the_same_when_the_state_folder_cannot_be_written(
    project: Project, engine: Any, options: str
) -> None:
    bucket = project.folder.parent / "bucket"
    project.configure(nodes=1, checkpoints={"bucket": bucket.as_uri()})
    project.hvdcloud("up")
    assert len(labelled(engine, project.name)) == 2
    assert "is gone" in project.hvdcloud("down", before=small_disk(project.state, options)).out
    assert labelled(engine, project.name) == []
    assert "there is no cluster" in project.hvdcloud("down", before=small_disk(project.state, options)).out


def test_a_full_checkpoint_disk_fails_the_job_and_loses_no_checkpoint(cluster: Project, engine: Any) -> None:
    fill = f'{CHECKPOINTS}; head -c 2000000 /dev/zero > "$HVDCLOUD_CHECKPOINT_DIR/large.pt"'
    with small_disk_in(engine, f"{cluster.name}-0", "/var/lib/hvdcloud/checkpoints", "1m"):
        ended = cluster.hvdcloud("--json", *RUN, fill, expect=7)
    result = ended.json["result"]
    assert result["reason"].startswith(f"rank 0 ({cluster.name}-0) exited with 1; its last line: head: ")
    assert "No space left on device" in ended.err
    assert result["checkpoints_complete"]
    pulled = cluster.hvdcloud("pull", result["run"], "--json").json["result"]["runs"]
    assert {"a.pt", "b.pt"} <= {path.name for path in Path(pulled[0]["folder"]).iterdir()}


def test_a_checkpoint_that_a_full_bucket_did_not_take_waits_on_its_node_for_room(
    project: Project, engine: Any, tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    if os.geteuid():
        pytest.skip("only root can mount a disk that the engine sees too")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(bucket)], check=True)
    try:
        project.hvdcloud("up", "--bucket", bucket.as_uri())
        run = project.hvdcloud("--json", *RUN, CHECKPOINTS, expect=9).json["result"]
        assert (run["state"], run["checkpoints_complete"]) == ("succeeded", False)
        refused = project.hvdcloud("down", expect=9).err
        assert "a.pt" in refused
        assert "no space left" in refused
        subprocess.run(["mount", "-o", "remount,size=8m", str(bucket)], check=True)
        # Asking to delete the nodes is what makes them try once more.
        assert f"{run['run']}/a.pt: not pulled" in project.hvdcloud("down", expect=9).err
        pulled = project.hvdcloud("pull", "--json").json["result"]["runs"]
        assert [(entry["files"], entry["complete"]) for entry in pulled] == [(2, True)]
        project.hvdcloud("down")
    finally:
        subprocess.run(["umount", "--lazy", str(bucket)], check=True)
    assert labelled(engine, project.name) == []
