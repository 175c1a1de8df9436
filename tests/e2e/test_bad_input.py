"""Whatever is wrong with the input, the machine or the bucket is named, with the next command, and breaks nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.lifecycle.up import MAKING_SECONDS
from tests.support.harness import TEST_LABEL, Project, Screen, labelled, project_in, until
from tests.support.trouble import damaged, small_disk, small_disk_in

pytestmark = pytest.mark.engine

# A rank that writes two checkpoints.
CHECKPOINTS = 'for name in a b; do head -c 300000 /dev/urandom > "$HVDCLOUD_CHECKPOINT_DIR/$name.pt"; done'
RUN = ("run", "--fresh", "-np", "1", "--", "sh", "-c")


@pytest.fixture
def project(tmp_path: Path, engine: Any, image: str) -> Iterator[Project]:
    """A project of one node whose cluster is not up, and is not after the test."""
    project = project_in(tmp_path, "t-bad", nodes=1)
    yield project
    left = labelled(engine, project.name)
    if left:
        project.hvdcloud("down", "--force")
    assert left == []


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, engine: Any, image: str) -> Iterator[Project]:
    """A cluster of two nodes that is up, with the checkpoints of one run."""
    project = project_in(tmp_path_factory.mktemp("bad"), "t-bad-up")
    project.hvdcloud("up")
    project.hvdcloud("run", "--", "sh", "-c", CHECKPOINTS)
    yield project
    assert len(labelled(engine, project.name)) == 3, "no test took anything of it away"
    project.hvdcloud("down", "--force")
    assert labelled(engine, project.name) == []


def elsewhere(project: Project, root: Path) -> Project:
    """The same project on a machine that knows nothing of the first one's clusters."""
    return replace(project, state=root / "another machine")


def bucket_of(project: Project) -> Path:
    """The folder of the cluster's first run in the bucket."""
    return min((project.state / project.name / "bucket" / project.name).iterdir())


# --- no files, no cluster -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["build", "up", "launch"])
def test_requirements_that_are_not_there_are_named(project: Project, command: str) -> None:
    (project.folder / "requirements.txt").unlink()
    project.write("train.py", "")
    project = replace(project, environ={**project.environ, "HVDCLOUD_IMAGE__REQUIREMENTS": "requirements.txt"})
    ended = project.hvdcloud(command, expect=2)
    assert f"{project.folder}/requirements.txt does not exist" in ended.err
    assert "requirements: null" in ended.err


@pytest.mark.parametrize("command", ["run", "status", "logs", "ssh", "stop"])
def test_a_command_for_a_cluster_that_is_not_there_says_how_to_make_one(tmp_path: Path, command: str) -> None:
    ended = project_in(tmp_path, "t-bad").hvdcloud(command, expect=2)
    assert "there is no cluster t-bad" in ended.err
    assert "hvdcloud up" in ended.err
    assert ended.out == ""


def test_pull_without_a_cluster_and_without_checkpoints_says_so(tmp_path: Path) -> None:
    assert "holds no checkpoints of t-bad" in project_in(tmp_path, "t-bad").hvdcloud("pull", expect=2).err


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


def test_a_name_that_a_foreign_container_has_is_refused_and_the_container_stays(
    project: Project, engine: Any, image: str
) -> None:
    stranger = engine.containers.create(image, name="t-bad-0", entrypoint="true", labels={TEST_LABEL: "stranger"})
    try:
        ended = project.hvdcloud("up", expect=2)
        assert "the name t-bad-0 is taken by a container that is not hvdcloud's" in ended.err
        assert "--name" in ended.err
        assert "there is no cluster" in project.hvdcloud("down").out
        stranger.reload()
        assert stranger.name == "t-bad-0"
    finally:
        stranger.remove(force=True)


def test_a_network_name_that_is_taken_is_refused_and_the_network_stays(project: Project, engine: Any) -> None:
    stranger = engine.networks.create("hvdcloud-t-bad", labels={TEST_LABEL: "stranger"})
    try:
        assert "the network hvdcloud-t-bad exists already" in project.hvdcloud("up", expect=2).err
        assert labelled(engine, project.name) == []
        stranger.reload()
    finally:
        stranger.remove()


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


def test_down_works_from_a_machine_that_has_only_the_labels(project: Project, engine: Any, tmp_path: Path) -> None:
    project.hvdcloud("up")
    assert "is gone" in elsewhere(project, tmp_path).hvdcloud("down").out
    assert labelled(engine, project.name) == []
    # The first machine still has its keys, and is not misled by them.
    assert "there is no cluster" in project.hvdcloud("run", expect=2).err


@pytest.mark.parametrize("machines", [1, 2])
def test_an_up_that_comes_while_another_one_makes_its_cluster_is_refused_and_disturbs_nothing(
    project: Project, engine: Any, tmp_path: Path, machines: int
) -> None:
    other = elsewhere(project, tmp_path) if machines == 2 else project
    with project.started("up", "--nodes", "2") as first:
        screen = Screen(first)
        until(lambda: labelled(engine, project.name), seconds=60, what="the first one's network")
        # Stopped, so that it is half-way however long the second one takes.
        first.send_signal(signal.SIGSTOP)
        try:
            refused = other.hvdcloud("up", "--nodes", "2", expect=2).err
        finally:
            first.send_signal(signal.SIGCONT)
        screen.end(within=120)
    assert first.returncode == 0, screen.text
    # How far the first one is when it is stopped differs a little.
    assert re.search(
        "is being changed" if machines == 1 else "may still be starting|was not finished from this", refused
    )
    assert len(labelled(engine, project.name)) == 3
    assert project.hvdcloud("ssh", "1", "--", "hostname").out == "t-bad-1\n"
    project.hvdcloud("down")


@pytest.mark.parametrize("machines", [1, 2])
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


def test_what_another_user_has_just_begun_is_not_taken_for_what_is_left_of_a_cluster(
    project: Project, engine: Any
) -> None:
    """The network comes before the containers."""

    def begun(seconds_ago: float) -> Any:
        spec = ClusterSpec(
            name=project.name,
            id="abc123",
            owner="somebody-elsewhere",
            nodes=2,
            image="",
            bucket="",
            authorized_key="",
            created=datetime.now(timezone.utc) - timedelta(seconds=seconds_ago),
        )
        return engine.networks.create(f"hvdcloud-{project.name}", labels=spec.labels)

    network = begun(5.0)
    refused = project.hvdcloud("up", expect=2).err
    assert re.search(r"cluster t-bad was started \d+ s ago by somebody-elsewhere, and may still be starting", refused)
    assert "try again in two minutes" in refused
    network.remove()
    begun(MAKING_SECONDS)
    assert "the nodes of an earlier t-bad are gone" in project.hvdcloud("up").err
    project.hvdcloud("down")


# --- subnets ---------------------------------------------------------------------------------------------------------


@pytest.mark.engine(alone=True)  # Another cluster would find no subnet either.
def test_when_the_engine_has_no_subnet_left_up_says_so_and_leaves_nothing(project: Project, engine: Any) -> None:
    from docker.errors import APIError

    taken: list[Any] = []
    try:
        for number in range(200):
            try:
                taken.append(engine.networks.create(f"t-bad-subnet-{number}", labels={TEST_LABEL: "subnets"}))
            except APIError:
                break
        else:
            pytest.skip("this engine has subnets for more than 200 networks")
        ended = project.hvdcloud("up", expect=4)
    finally:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda network: network.remove(), taken))
    assert "the engine has no free subnet for the network hvdcloud-t-bad" in ended.err
    assert "docker network prune" in ended.err
    assert labelled(engine, project.name) == []


# --- no space ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", ["4k", "12k", "24k"])
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


def test_a_bucket_folder_that_cannot_be_made_is_named(project: Project, engine: Any, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (tmp_path / "file").write_text("")
    ended = project.hvdcloud("up", "--bucket", f"file://{tmp_path}/file", expect=2)
    assert f"the bucket's folder {tmp_path}/file cannot be made" in ended.err
    ended = project.hvdcloud(
        "up", "--bucket", f"file://{full}/bucket", expect=4, before=small_disk(full, "nr_inodes=1")
    )
    assert f"the bucket's folder {full}/bucket cannot be made: No space left" in ended.err
    assert labelled(engine, project.name) == []


def test_pull_to_a_full_disk_fetches_nothing_and_down_still_refuses(cluster: Project, tmp_path: Path) -> None:
    target = tmp_path / "small"
    target.mkdir()
    ended = cluster.hvdcloud("pull", "--to", str(target), expect=4, before=small_disk(target, "size=512k"))
    assert "the checkpoints need 1.20 MB more" in ended.err
    assert "--to" in ended.err
    assert "not pulled" in cluster.hvdcloud("down", expect=9).err


def test_code_that_does_not_fit_on_a_node_names_node_and_cause(cluster: Project, engine: Any) -> None:
    large = cluster.folder / "large.bin"
    large.write_bytes(bytes(1 << 20))
    try:
        with small_disk_in(engine, f"{cluster.name}-1", "/workspace", "256k"):
            ended = cluster.hvdcloud("run", "--", "true", expect=5)
    finally:
        large.unlink()
    assert f"node {cluster.name}-1" in ended.err
    assert "No space left on device" in ended.err


def test_a_log_that_fills_the_heads_disk_ends_the_run_and_says_so(cluster: Project, engine: Any) -> None:
    with small_disk_in(engine, f"{cluster.name}-0", "/var/lib/hvdcloud/runs", "1m"):
        ended = cluster.hvdcloud("--json", *RUN, "exec yes this line is written without end", expect=7)
    result = ended.json["result"]
    assert result["state"] == "failed"
    assert f"the log could not be written on node {cluster.name}-0: No space left on device" in result["reason"]


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


# --- the bucket ------------------------------------------------------------------------------------------------------


def test_pull_of_a_damaged_object_fetches_the_others_and_down_refuses(cluster: Project, tmp_path: Path) -> None:
    bucket = bucket_of(cluster)
    target = tmp_path / "pulled"
    with damaged(bucket / "b.pt"):
        ended = cluster.hvdcloud("pull", bucket.name, "--to", str(target), "--json", expect=9)
        refused = cluster.hvdcloud("down", expect=9)
    assert "b.pt does not verify" in ended.json["error"]["message"]
    assert "b.pt" in ended.err
    assert ended.json["exit_code"] == 9
    names = sorted(str(path.relative_to(target / bucket.name)) for path in target.rglob("*.pt"))
    assert names == ["@node-1/a.pt", "@node-1/b.pt", "a.pt"]
    assert f"{bucket.name}/b.pt: not pulled" in refused.err
    assert "a.pt" not in refused.err.replace("@node-1", "")
    cluster.hvdcloud("pull", bucket.name, "--to", str(target))
    assert (target / bucket.name / "b.pt").read_bytes() == (bucket / "b.pt").read_bytes()
    # It is verified where it was; without it, nothing is safe again.
    shutil.rmtree(target)
    assert "was deleted" in cluster.hvdcloud("down", expect=9).err


@pytest.mark.parametrize("name", ["../../outside.pt", "/tmp/t-bad-outside.pt", "link/outside.pt"])
def test_a_manifest_that_names_a_file_outside_the_target_is_refused(
    cluster: Project, tmp_path: Path, name: str
) -> None:
    bucket = bucket_of(cluster)
    target, outside = tmp_path / "pulled", tmp_path / "outside"
    outside.mkdir()
    (target / bucket.name).mkdir(parents=True)
    (target / bucket.name / "link").symlink_to(outside)
    manifest = bucket / ".hvdcloud" / "manifest-0.json"
    right, times = manifest.read_bytes(), manifest.stat()
    try:
        manifest.write_bytes(right.replace(b'"name":"a.pt"', f'"name":"{name}"'.encode()))
        ended = cluster.hvdcloud("pull", bucket.name, "--to", str(target), expect=9)
    finally:
        manifest.write_bytes(right)
        os.utime(manifest, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert name in ended.err
    assert list(outside.iterdir()) == []
    # What the other node wrote arrives all the same.
    assert list(tmp_path.rglob("outside.pt")) == []
    assert not Path("/tmp/t-bad-outside.pt").exists()
