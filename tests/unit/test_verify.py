"""`unverified` keeps `down` from losing a checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvdcloud.checkpoints.pull import pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles, unverified
from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.open import open_bucket
from tests.support.harness import DEADLINE

CLUSTER, RUN = "digits", "20261120-101500-abc123"


class Workers:
    def __init__(self, root: Path) -> None:
        self.bucket: Bucket = open_bucket(f"file://{root}/bucket")
        self.directory = root / "node" / RUN
        self.directory.mkdir(parents=True)
        self.target = root / "pulled"
        self.ledger_path = root / "ledger.json"
        self.uploader = Uploader(
            self.bucket, cluster=CLUSTER, run=RUN, node=0, directory=self.directory, quiet_seconds=0
        )

    def finish(self) -> None:
        self.uploader.finish(DEADLINE)

    def pull(self) -> None:
        pull(self.bucket, cluster=CLUSTER, run=RUN, target=self.target, verified_files=VerifiedFiles(self.ledger_path))

    def unverified(self) -> dict[str, str]:
        found = unverified(self.bucket, cluster=CLUSTER, run=RUN, verified_files=VerifiedFiles(self.ledger_path))
        return {item.name: item.reason for item in found}


@pytest.fixture
def world(tmp_path: Path) -> Workers:
    world = Workers(tmp_path)
    (world.directory / "a").write_bytes(b"aaa")
    (world.directory / "b").write_bytes(b"bbb")
    return world


MANIFEST = f"{CLUSTER}/{RUN}/.hvdcloud/manifest-0.json"


def test_nothing_is_missing_once_all_is_uploaded_and_pulled(world: Workers) -> None:
    assert world.unverified() == {MANIFEST: "no node has written a manifest"}
    world.uploader.scan()
    assert world.unverified() == {
        MANIFEST: "node 0 has not finished uploading",
        "a": "not pulled",
        "b": "not pulled",
    }
    world.pull()
    assert world.unverified() == {MANIFEST: "node 0 has not finished uploading"}
    world.finish()
    assert world.unverified() == {}


def test_what_happens_to_the_files_afterwards_is_noticed(world: Workers) -> None:
    world.finish()
    world.pull()
    a, b = world.target / RUN / "a", world.target / RUN / "b"
    os.utime(a)
    assert world.unverified() == {}, "another time alone is looked into, not feared"
    a.unlink()
    b.write_bytes(b"BBB")
    assert world.unverified() == {"a": f"{a} was deleted", "b": f"{b} was changed after it was pulled"}
    b.unlink()
    b.symlink_to(world.directory / "b")
    assert world.unverified()["b"] == f"{b} is not a file any more"
    world.pull()
    assert world.unverified() == {}


def test_a_local_copy_that_can_not_be_read_is_not_safe(world: Workers) -> None:
    world.finish()
    world.pull()
    folder = world.target / RUN
    folder.rename(world.target / "elsewhere")
    folder.symlink_to(folder)
    reasons = world.unverified()
    assert set(reasons) == {"a", "b"}
    assert reasons["a"].startswith(f"{folder / 'a'} can't be read: ")


def test_a_newer_one_in_the_bucket_counts(world: Workers) -> None:
    world.finish()
    world.pull()
    (world.directory / "a").write_bytes(b"new")
    world.finish()
    assert world.unverified() == {"a": "a newer one is in the bucket"}
    world.pull()
    assert world.unverified() == {}


def test_the_ledger_of_another_cluster_or_run_does_not_count(world: Workers, tmp_path: Path) -> None:
    world.finish()
    world.pull()
    other = tmp_path / "other.json"
    other.write_text(world.ledger_path.read_text().replace(RUN, "20261120-101500-ffffff", 1))
    found = unverified(world.bucket, cluster=CLUSTER, run=RUN, verified_files=VerifiedFiles(other))
    assert len(found) == 1
