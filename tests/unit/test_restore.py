"""A second run starts from the first one's checkpoints and does not send them back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvdcloud.checkpoints.manifest import (
    Manifest,
    load_manifests,
    manifest_name,
    object_name,
    run_prefix,
    to_json,
)
from hvdcloud.errors import CapacityError, CheckpointError
from hvdcloud.node.uploads.restore import gather, restore
from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.open import open_bucket
from tests.support.harness import DEADLINE
from tests.support.manifests import entry_of

CLUSTER = "digits"
RUNS = [f"2026112{number}-000000-abc123" for number in range(5)]


class Workers:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "bucket"
        self.bucket: Bucket = open_bucket(self.folder.as_uri())

    def directory(self, run: str, node: int = 0) -> Path:
        path = self.root / f"node-{node}" / run
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, run: str, name: str, data: bytes, *, node: int = 0, modified: float | None = None) -> None:
        path = self.directory(run, node) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if modified is not None:
            os.utime(path, (modified, modified))

    def finish(self, run: str, node: int = 0) -> list[str]:
        """The files that had to be uploaded."""
        directory = self.directory(run, node)
        up = Uploader(self.bucket, cluster=CLUSTER, run=run, node=node, directory=directory, quiet_seconds=0)
        up.finish(DEADLINE)
        return sorted(up.uploaded)

    def restore(self, run_from: str, run: str, node: int = 0) -> int:
        return restore(self.bucket, cluster=CLUSTER, run_from=run_from, directory=self.directory(run, node))

    def gather(self, run: str, node: int = 0) -> int:
        return gather(self.bucket, cluster=CLUSTER, run=run, directory=self.directory(run, node))

    def files(self, run: str, node: int = 0) -> dict[str, bytes]:
        directory = self.directory(run, node)
        return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def world(tmp_path: Path) -> Workers:
    return Workers(tmp_path)


def test_the_files_of_all_nodes_come_together_and_the_newest_wins(world: Workers) -> None:
    world.write(RUNS[0], "head", b"0", modified=100)
    world.write(RUNS[0], "both", b"old", modified=100)
    world.write(RUNS[0], "both", b"new", node=1, modified=200)
    world.write(RUNS[0], "deep/@node-7/x", b"1", node=1, modified=100)
    for node in (0, 1):
        world.finish(RUNS[0], node)
        assert world.restore(RUNS[0], RUNS[1], node) == 3 if node else True
    assert world.restore(RUNS[0], RUNS[2]) == 3
    assert world.files(RUNS[2]) == {"head": b"0", "both": b"new", "deep/@node-7/x": b"1"}
    assert (world.directory(RUNS[2]) / "both").stat().st_mtime == 200, "scripts look for the newest by its time"


def test_restored_files_are_not_uploaded_again_until_they_change(world: Workers) -> None:
    world.write(RUNS[0], "epoch-1", b"1")
    world.write(RUNS[0], "latest", b"1")
    world.finish(RUNS[0])
    world.restore(RUNS[0], RUNS[1])
    assert world.finish(RUNS[1]) == []
    world.write(RUNS[1], "latest", b"2")
    assert world.finish(RUNS[1]) == ["latest"]
    manifest = load_manifests(world.bucket, cluster=CLUSTER, run=RUNS[1])[0]
    assert manifest.resumed == RUNS[0]
    assert [entry.name for entry in manifest.files] == ["latest"]


def test_a_run_that_saved_nothing_new_hands_on_what_it_was_given(world: Workers) -> None:
    world.write(RUNS[0], "epoch-1", b"1")
    world.finish(RUNS[0])
    world.restore(RUNS[0], RUNS[1])
    world.finish(RUNS[1])
    world.restore(RUNS[1], RUNS[2])
    world.write(RUNS[2], "epoch-2", b"2")
    world.finish(RUNS[2])
    assert world.restore(RUNS[2], RUNS[3]) == 2
    assert (world.directory(RUNS[3]) / "epoch-1").read_bytes() == b"1"


def test_repeating_a_restore_changes_nothing_and_never_undoes_new_work(world: Workers) -> None:
    world.write(RUNS[0], "a", b"1")
    world.write(RUNS[0], "b", b"1")
    world.finish(RUNS[0])
    world.restore(RUNS[0], RUNS[1])
    before = (world.directory(RUNS[1]) / "a").stat()
    world.write(RUNS[1], "b", b"this run's own")
    (world.directory(RUNS[1]) / ".1-1.hvdcloud-part").write_bytes(b"of a killed restore")
    (world.directory(RUNS[1]) / ".state").write_bytes(b"the script's own")
    assert world.restore(RUNS[0], RUNS[1]) == 1
    after = (world.directory(RUNS[1]) / "a").stat()
    # All but the access time: it is read to be compared.
    for what in ("st_ino", "st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_mtime_ns", "st_ctime_ns"):
        assert getattr(after, what) == getattr(before, what), what
    assert (world.directory(RUNS[1]) / "b").read_bytes() == b"this run's own"
    assert sorted(path.name for path in world.directory(RUNS[1]).iterdir()) == [".state", "a", "b"]
    assert world.finish(RUNS[1]) == [".state", "b"]


def test_an_unknown_run_and_a_damaged_checkpoint_are_errors(world: Workers) -> None:
    with pytest.raises(CheckpointError, match="has no checkpoints"):
        world.restore(RUNS[0], RUNS[1])
    world.write(RUNS[0], "a", b"1")
    world.write(RUNS[0], "b", b"1")
    world.finish(RUNS[0])
    world.bucket.write(f"{run_prefix(CLUSTER, RUNS[0])}a", b"2")
    with pytest.raises(CheckpointError, match=r"1 checkpoint of .* could not be restored: a"):
        world.restore(RUNS[0], RUNS[1])
    assert not (world.directory(RUNS[1]) / "a").exists()


def test_what_a_lost_node_had_announced_and_sent_is_restored(world: Workers) -> None:
    prefix = run_prefix(CLUSTER, RUNS[0])
    old = world.bucket.write(f"{prefix}latest", b"old")
    listed = entry_of("latest", b"old", generation=old.generation, modified=100.0)
    announced = {"latest": b"new", "sent": b"sent", "never": b"x"}
    uploading = [entry_of(name, data, modified=500.0) for name, data in announced.items()]
    manifest = Manifest(cluster=CLUSTER, run=RUNS[0], node=0, complete=False, files=[listed], uploading=uploading)
    world.bucket.write(manifest_name(CLUSTER, RUNS[0], 0), to_json(manifest))
    world.bucket.write(f"{prefix}sent", b"sent")
    assert world.restore(RUNS[0], RUNS[1]) == 2
    assert (world.directory(RUNS[1]) / "latest").read_bytes() == b"old"
    world.bucket.write(f"{prefix}latest", b"new")
    assert world.restore(RUNS[0], RUNS[2]) == 2
    assert (world.directory(RUNS[2]) / "latest").read_bytes() == b"new"


def test_of_several_that_were_announced_and_sent_the_newest_is_restored(world: Workers) -> None:
    prefix = run_prefix(CLUSTER, RUNS[0])
    for node, modified in ((0, 100.0), (1, 300.0), (2, 200.0)):
        name, data = object_name("latest", node=node), f"of {node}".encode()
        entry = entry_of(name, data, modified=modified)
        manifest = Manifest(cluster=CLUSTER, run=RUNS[0], node=node, complete=False, files=[], uploading=[entry])
        world.bucket.write(manifest_name(CLUSTER, RUNS[0], node), to_json(manifest))
        world.bucket.write(prefix + name, data)
    assert world.restore(RUNS[0], RUNS[1]) == 1
    assert world.files(RUNS[1]) == {"latest": b"of 1"}


def test_too_little_space_is_found_out_before_anything_is_restored(world: Workers) -> None:
    small = world.bucket.write(f"{run_prefix(CLUSTER, RUNS[0])}a", b"a")
    entries = [
        entry_of("a", b"a", generation=small.generation),
        entry_of("huge", b"", generation=1, size=10**18),
    ]
    manifest = Manifest(cluster=CLUSTER, run=RUNS[0], node=0, complete=True, files=entries)
    world.bucket.write(manifest_name(CLUSTER, RUNS[0], 0), to_json(manifest))
    with pytest.raises(CapacityError, match=r"need 1000000000\.0 GB"):
        world.restore(RUNS[0], RUNS[1])
    assert world.files(RUNS[1]) == {}


def test_gathering_brings_every_node_to_the_newest_of_all(world: Workers) -> None:
    for node, modified in ((0, 100), (1, 300), (2, 200)):
        world.write(RUNS[0], "latest", f"of {node}".encode(), node=node, modified=modified)
        world.write(RUNS[0], f"own-{node}", b"x", node=node, modified=modified)
        world.finish(RUNS[0], node)
    whole = {"latest": b"of 1", "own-0": b"x", "own-1": b"x", "own-2": b"x"}

    assert [world.gather(RUNS[0], node) for node in range(3)] == [4, 4, 4]
    assert [world.files(RUNS[0], node) for node in range(3)] == [whole] * 3
    assert (world.directory(RUNS[0]) / "latest").stat().st_mtime == 300
    # What was fetched is not sent back, and not fetched again.
    assert world.finish(RUNS[0]) == []
    assert world.gather(RUNS[0]) == 4


def test_gathering_keeps_what_is_newer_here_and_fetches_nothing_where_nothing_is(world: Workers) -> None:
    assert world.gather(RUNS[0]) == 0
    world.write(RUNS[0], "latest", b"of 1", node=1, modified=100)
    world.finish(RUNS[0], 1)
    world.write(RUNS[0], "latest", b"of 0", modified=200)
    world.gather(RUNS[0])
    assert world.files(RUNS[0]) == {"latest": b"of 0"}


def test_gathering_continues_from_what_the_run_was_given(world: Workers) -> None:
    world.write(RUNS[0], "epoch-1", b"1", modified=100)
    world.finish(RUNS[0])
    for node in (0, 1):
        world.restore(RUNS[0], RUNS[1], node)
    world.write(RUNS[1], "epoch-2", b"2", node=1, modified=200)
    for node in (0, 1):
        world.finish(RUNS[1], node)

    world.gather(RUNS[1])

    assert world.files(RUNS[1]) == {"epoch-1": b"1", "epoch-2": b"2"}
    world.finish(RUNS[1])
    manifests = load_manifests(world.bucket, cluster=CLUSTER, run=RUNS[1])
    assert {manifest.resumed for manifest in manifests} == {RUNS[0]}
    assert world.restore(RUNS[1], RUNS[2]) == 2
