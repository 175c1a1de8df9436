"""What only a folder has to care for: owners, killed writers, other processes, odd files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hvdcloud.errors import CheckpointError, UsageError
from hvdcloud.storage.base import PreconditionError
from hvdcloud.storage.folder import TEMPORARY
from hvdcloud.storage.open import open_bucket


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_belongs_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    root = tmp_path / "bucket"
    root.mkdir()
    os.chown(root, 4242, 4343)
    bucket = open_bucket(root.as_uri())
    bucket.write("a/b/c", b"1")
    bucket.write("a/b/c", b"2")
    bucket.write("once", b"1", if_generation=0)
    for path in root.rglob("*"):
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (4242, 4343), path
        assert status.st_mode & 0o777 == (0o755 if path.is_dir() else 0o644), path


def test_a_generation_survives_a_restart_and_a_clock_that_goes_back(tmp_path: Path) -> None:
    first = open_bucket(f"file://{tmp_path}").write("x", b"1")
    bucket = open_bucket(f"file://{tmp_path}")
    stat = bucket.stat("x")
    assert stat is not None
    assert stat.generation == first.generation
    future = first.generation + 10**18
    os.utime(tmp_path / "x", ns=(future, future))
    assert bucket.write("x", b"2").generation > future


def test_only_plain_files_are_objects(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    root = tmp_path / "bucket"
    root.mkdir()
    bucket = open_bucket(root.as_uri())
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "folder-link").symlink_to(tmp_path)
    os.mkfifo(root / "fifo")
    (root / "folder").mkdir()
    assert list(bucket.list("")) == []
    for name in ("link", "fifo", "folder", f"{TEMPORARY}/x", "link/x", "x" * 300):
        assert bucket.stat(name) is None
    with pytest.raises(CheckpointError):
        bucket.write(f"{TEMPORARY}/x", b"")
    with pytest.raises(CheckpointError):
        bucket.write("folder", b"")
    with pytest.raises(PreconditionError):
        bucket.write("link", b"", if_generation=0)


@pytest.mark.parametrize(
    "url", ["", "/tmp", "s3://x", "file://host/x", "file:x", "file:///x?y", "gs://", "gs:///x", "GS://x"]
)
def test_only_the_two_kinds_of_url_are_buckets(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_bucket(url)
    assert "gs://BUCKET" in caught.value.hint


def test_a_url_may_be_percent_encoded(tmp_path: Path) -> None:
    root = tmp_path / "with space and ü"
    open_bucket(root.as_uri()).write("x", b"1")
    assert (root / "x").read_bytes() == b"1"
    assert open_bucket(f"file://{root}").read("x") == b"1"
