"""A job, or another writer of its bucket, against the machine that its checkpoints are pulled to."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import Manifest, manifest_name, object_name, run_prefix, to_json
from hvdcloud.checkpoints.pull import PulledRun, PullError, pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles, unverified
from hvdcloud.errors import CheckpointError, ExitCode
from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.runs.reports import UploadReport
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.open import open_bucket
from tests.support.harness import DEADLINE
from tests.support.manifests import entry_of

CLUSTER, RUN = "digits", "20261120-101500-abc123"
PREFIX = run_prefix(CLUSTER, RUN)


class Scene:
    """A bucket with a good node 0 and a hostile node 1, and a disk to pull to."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "bucket"
        self.bucket: Bucket = open_bucket(self.folder.as_uri())
        self.directory = root / "node"
        self.directory.mkdir()
        self.target = root / "pulled"
        self.record = root / "state" / "verified.json"
        self.put({"good": b"good"}, node=0)

    def put(self, files: dict[str, bytes], *, node: int = 1) -> None:
        """Files with a manifest."""
        entries = []
        for file, data in files.items():
            name = object_name(file, node=node)
            info = self.bucket.write(PREFIX + name, data)
            entries.append(entry_of(name, data, generation=info.generation))
        manifest = Manifest(cluster=CLUSTER, run=RUN, node=node, complete=True, files=entries)
        self.put_manifest(to_json(manifest), node=node)

    def put_manifest(self, data: bytes, *, node: int = 1) -> None:
        self.bucket.write(manifest_name(CLUSTER, RUN, node), data)

    def pull(self) -> PulledRun:
        verified_files = VerifiedFiles(self.record)
        return pull(self.bucket, cluster=CLUSTER, run=RUN, target=self.target, verified_files=verified_files)

    def failed_pull(self) -> PullError:
        """It fails, and what the good node wrote is here all the same."""
        with pytest.raises(PullError) as caught:
            self.pull()
        assert caught.value.code == ExitCode.CHECKPOINT
        assert self.path("good").read_bytes() == b"good"
        return caught.value

    def path(self, name: str) -> Path:
        return self.target / RUN / name

    def unverified(self) -> dict[str, str]:
        found = unverified(self.bucket, cluster=CLUSTER, run=RUN, verified_files=VerifiedFiles(self.record))
        return {item.name: item.reason for item in found}

    def job(self, *names: str) -> UploadReport:
        """Node 1 writes these, and the agent there uploads what it may."""
        for name in names:
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            (self.directory / name).write_text(name)
        up = Uploader(self.bucket, cluster=CLUSTER, run=RUN, node=1, directory=self.directory, quiet_seconds=0)
        return up.finish(DEADLINE)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


REPOSITORY = ("HEAD", "config", "objects/info/x", "refs/heads/main")


def write_repository(folder: Path, canary: Path) -> None:
    """A repository whose configuration runs a command as soon as its status is asked for."""
    subprocess.run(["git", "init", "-q", "--bare", str(folder)], check=True, capture_output=True)
    config = f'[core]\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch {canary}; false"\n'
    (folder / "config").write_text(f"[core]\n\trepositoryformatversion = 0\n{config}")


def ask_git(folder: Path) -> None:
    """What a prompt does in every folder."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "status"], cwd=folder, env=environment, capture_output=True, timeout=300, check=False)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
@pytest.mark.parametrize("where", [".git", ".", "inner"])
def test_git_runs_nothing_in_a_folder_that_was_pulled(scene: Scene, tmp_path: Path, where: str) -> None:
    attack, canary = tmp_path / "attack", tmp_path / "canary"
    attack.mkdir()
    repository = attack / where
    write_repository(repository, canary)
    ask_git(repository.parent if where == ".git" else repository)
    assert canary.exists(), "the attack works where nothing is refused"
    canary.unlink()
    files = {str(path.relative_to(attack)): path.read_bytes() for path in attack.rglob("*") if path.is_file()}
    # Git's own folders are empty at first, and an empty folder is no object.
    inside = "" if where == "." else f"{where}/"
    files |= {f"{inside}objects/pack/x": b"", f"{inside}refs/heads/x": b""}
    scene.put(files, node=1)
    result = scene.pull()
    assert scene.path("good").exists()
    assert result.refused
    for folder in (scene.path("@node-1"), scene.path("@node-1") / where):
        if folder.is_dir():
            ask_git(folder)
    assert not canary.exists()


def test_what_looks_like_a_repository_is_not_sent_and_the_rest_is(scene: Scene) -> None:
    hidden = [f"a/{part}" for part in REPOSITORY if part != "config"]
    report = scene.job(
        ".git/config", "x/.GIT/config", ".hvdcloud/log", *hidden, "a/config", "a/epoch-1.pt", "epoch-2.pt"
    )
    assert report.complete
    assert report.errors == report.pending == []
    names = sorted(path.name for path in (scene.folder / PREFIX / "@node-1").rglob("*") if path.is_file())
    assert names == ["config", "epoch-1.pt", "epoch-2.pt"]
    assert len(report.skipped) == 3
    assert all("not uploaded, since" in line for line in report.skipped)
    assert any(line.startswith(".git/config and 1 more: ") for line in report.skipped)
    result = scene.pull()
    assert (result.files, result.complete, result.refused) == (4, True, {})


def test_what_another_version_sent_is_refused_with_its_reason_and_keeps_no_node(scene: Scene) -> None:
    scene.put({".git/config": b"x", "epoch-1.pt": b"y", **{f"a/{part}": b"z" for part in REPOSITORY}})
    result = scene.pull()
    refused = [".git/config", "a/HEAD", "a/objects/info/x", "a/refs/heads/main"]
    assert sorted(result.refused) == [f"@node-1/{name}" for name in refused]
    assert all(not scene.path(f"@node-1/{name}").exists() for name in refused)
    assert scene.path("@node-1/epoch-1.pt").exists()
    assert scene.path("@node-1/a/config").exists()
    assert scene.unverified() == {}, "what never comes to this disk is in the bucket, and not lost with a node"


def test_a_repository_that_comes_in_two_pulls_is_refused_too(scene: Scene) -> None:
    scene.put({"a/HEAD": b"ref: refs/heads/main"})
    assert scene.pull().refused == {}
    scene.put({"a/objects/x": b"", "a/refs/x": b"", "b": b""})
    assert sorted(scene.pull().refused) == ["@node-1/a/objects/x", "@node-1/a/refs/x"]
    assert not scene.path("@node-1/a/objects").exists()
    assert scene.path("@node-1/b").exists()
    assert scene.unverified() == {}


GOOD_ENTRY = {"name": "@node-1/x", "size": 1, "crc32c": "AAAAAA==", "generation": 1, "modified": 1.0}


def manifest_with(**entry: Any) -> bytes:
    value = {"version": 1, "cluster": CLUSTER, "run": RUN, "node": 1, "complete": True}
    return json.dumps({**value, "files": [{**GOOD_ENTRY, **entry}]}).encode()


JUNK = {
    "not JSON": b"junk",
    "a name that leads out": manifest_with(name="@node-1/../../../x"),
    "another node's file": manifest_with(name="good"),
    "another node": manifest_with().replace(b'"node": 1', b'"node": 0'),
    "not UTF-8": manifest_with().replace(b"@node-1/x", b"@node-1/\xff"),
}
"""What else is refused: test_manifest.py."""


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_one_bad_manifest_costs_its_own_nodes_files_only(scene: Scene, junk: bytes) -> None:
    scene.put({"other": b"other"}, node=2)
    scene.put_manifest(junk)
    error = scene.failed_pull()
    assert scene.path("@node-2/other").read_bytes() == b"other"
    assert {path.name for path in scene.target.rglob("*")} == {RUN, "good", "@node-2", "other"}
    assert "node 1" in error.message
    assert "2 checkpoints of the other nodes arrived" in error.message
    assert error.hint.endswith("give up what this node wrote in this run")
    assert [*error.failed] == [manifest_name(CLUSTER, RUN, 1)]
    assert not error.pulled.complete
    assert list(scene.unverified()) == [manifest_name(CLUSTER, RUN, 1)]
    assert "what node 1 wrote is not verified" in scene.unverified()[manifest_name(CLUSTER, RUN, 1)]


def test_where_all_manifests_are_bad_nothing_is_written(scene: Scene) -> None:
    scene.put_manifest(b"junk", node=0)
    scene.put_manifest(b"junk", node=1)
    with pytest.raises(PullError, match="nothing of nodes 0, 1"):
        scene.pull()
    assert not scene.target.exists()


def test_a_size_that_the_bucket_contradicts_costs_its_own_file(scene: Scene) -> None:
    scene.put({"huge": b"x", "fine": b"y"})
    manifest = scene.folder / manifest_name(CLUSTER, RUN, 1)
    scene.put_manifest(manifest.read_bytes().replace(b'huge","size":1', b'huge","size":%d' % (2**63 - 1)))
    error = scene.failed_pull()
    assert [*error.failed] == ["@node-1/huge"]
    assert scene.path("@node-1/fine").exists()


def test_an_object_that_is_longer_than_promised_does_not_fill_the_disk(scene: Scene) -> None:
    scene.put({"long": b"12345678"})
    path = scene.folder / PREFIX / "@node-1" / "long"
    times = path.stat()
    with path.open("r+b") as file:
        file.truncate(1 << 42)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    error = scene.failed_pull()
    assert "8 bytes with CRC32C" in str(next(iter(error.failed.values())))
    assert "9 bytes with" in str(next(iter(error.failed.values())))


def test_names_that_one_disk_can_not_hold_together_cost_one_of_them(scene: Scene) -> None:
    scene.put({"x/y": b"1"}, node=1)
    manifest = json.loads((scene.folder / manifest_name(CLUSTER, RUN, 1)).read_bytes())
    manifest["files"].append({**GOOD_ENTRY, "name": "@node-1/x"})
    scene.put_manifest(json.dumps(manifest).encode())
    error = scene.failed_pull()
    assert scene.path("@node-1/x/y").read_bytes() == b"1"
    assert "needs a folder of this name" in str(next(iter(error.failed.values())))


def test_no_damage_to_a_manifest_does_more_than_cost_its_own_files(scene: Scene) -> None:
    """Bytes replaced, cut and repeated at random: the good node's files arrive, and nothing is written elsewhere."""
    rng = random.Random(16)
    right = manifest_with()
    pieces = [b"1e999", b"-1", b"null", b"[" * 2000, b'"\\ud800"', b"9" * 4400, b"../../x", b"\x00", b"true", b"NaN"]
    messages: list[str] = []
    for _ in range(150):
        start = rng.randrange(len(right))
        end = min(len(right), start + rng.randrange(20))
        scene.put_manifest(right[:start] + rng.choice(pieces) + right[end:])
        shutil.rmtree(scene.target, ignore_errors=True)
        scene.record.unlink(missing_ok=True)
        try:
            scene.pull()
        except CheckpointError as error:
            messages.append(str(error))
        assert scene.path("good").read_bytes() == b"good"
        assert {path.name for path in scene.target.rglob("*")} <= {RUN, "good", "@node-1", "x"}
    assert len(messages) > 100
    assert max(map(len, messages)) < 5000


def test_an_agent_writes_its_own_manifest_again_where_something_else_is_in_its_place(scene: Scene) -> None:
    assert scene.job("epoch-1.pt").complete
    scene.put_manifest(b"junk")
    report = scene.job("epoch-2.pt")
    assert report.complete
    assert "this node writes it again" in report.skipped[0]
    assert scene.pull().files == 3


@pytest.mark.parametrize("run", ["train", ".git", "..", "20261120-101500-ABC123", "x" * 200])
def test_what_is_no_run_never_becomes_a_folder(scene: Scene, run: str) -> None:
    with pytest.raises(CheckpointError):
        pull(scene.bucket, cluster=CLUSTER, run=run, target=scene.target, verified_files=VerifiedFiles(scene.record))
    assert not scene.target.exists()
