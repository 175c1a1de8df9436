"""What only a folder has to care for: owners, killed writers, other processes, odd files."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import stat
import threading
from pathlib import Path

import pytest

from hvdcloud.errors import CheckpointError, UsageError
from hvdcloud.storage import base
from hvdcloud.storage.base import (
    BucketUnreachableError,
    ChangedWhileUploadingError,
    Download,
    ObjectInfo,
    ObjectMissingError,
    TooLargeError,
)
from hvdcloud.storage.checksum import crc32c_of_bytes
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.folder_tree import TEMPORARY
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


def test_a_lock_that_another_holds_is_waited_for_but_not_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "LOCK_SECONDS", 0.2)
    bucket = open_bucket(tmp_path.as_uri())
    bucket.write("x", b"1")
    (tmp_path / "file").write_bytes(b"1")
    holder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    for write in (
        lambda: bucket.write("x", b"2"),
        lambda: bucket.write("new", b"2", if_generation=0),
        lambda: bucket.upload(tmp_path / "file", "y"),
        lambda: FolderBucket(tmp_path).receive(ObjectInfo(name="z", size=1, generation=5, crc32c=""), [b"1"]),
    ):
        # As a network that is away: what uploads tries again.
        with pytest.raises(BucketUnreachableError, match=r"maybe a job's, has held .* lock there for 0\.2 s") as raised:
            write()
        assert str(tmp_path) in raised.value.message
        assert "hvdcloud stop" in raised.value.hint
    assert bucket.read("x") == b"1"
    threading.Timer(0.1, os.close, [holder]).start()
    bucket.write("x", b"2")
    assert bucket.read("x") == b"2"


def test_a_file_without_an_end_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(TooLargeError):
        open_bucket(tmp_path.as_uri()).read("x")


# From fcntl.h and stdio.h of Linux.
AT_FDCWD, RENAME_EXCHANGE = -100, 2


class Attacked:
    """A bucket in which a job has put a link to a folder outside, and what that folder holds."""

    def __init__(self, tmp_path: Path) -> None:
        self.outside = tmp_path / "outside"
        (self.outside / "sub").mkdir(parents=True)
        for name in ("secret", "sub/secret"):
            (self.outside / name).write_bytes(b"secret")
        self.root = tmp_path / "bucket"
        self.bucket = open_bucket(self.root.as_uri())
        self.bucket.write("run/deep/good", b"good")

    def held(self) -> bool:
        """Whether what is outside is as it was."""
        found = {str(path.relative_to(self.outside)) for path in self.outside.rglob("*")}
        files = [path for path in self.outside.rglob("*") if path.is_file()]
        return found == {"secret", "sub", "sub/secret"} and all(path.read_bytes() == b"secret" for path in files)

    def fetch(self, name: str, target: Path) -> Exception | None:
        found: list[Exception | None] = []
        item = Download(name=name, target=target, size=6, crc32c=crc32c_of_bytes(b"secret"))
        self.bucket.download_many([item], workers=1, on_done=lambda _, error: found.append(error))
        return found[0]


@pytest.fixture
def attacked(tmp_path: Path) -> Attacked:
    return Attacked(tmp_path)


@pytest.mark.parametrize("where", ["run", "run/deep"])
def test_a_folder_that_a_job_replaces_by_a_link_leads_nowhere(attacked: Attacked, tmp_path: Path, where: str) -> None:
    shutil.rmtree(attacked.root / where)
    (attacked.root / where).symlink_to(attacked.outside)
    bucket, names = attacked.bucket, [f"{where}/secret", f"{where}/sub/secret"]
    assert list(bucket.list("")) == list(bucket.list(f"{where}/")) == list(bucket.list(f"{where}/sub/")) == []
    assert list(bucket.prefixes(f"{where}/")) == []
    for name in names:
        assert bucket.stat(name) is None
        with pytest.raises(ObjectMissingError):
            bucket.read(name)
        assert isinstance(attacked.fetch(name, tmp_path / "target"), ObjectMissingError)
        with pytest.raises(CheckpointError, match="a link is not followed"):
            bucket.write(name, b"evil")
    with pytest.raises(CheckpointError, match="a link is not followed"):
        bucket.write(f"{where}/new/er", b"evil")
    assert attacked.held()
    assert not (tmp_path / "target").exists()


def test_a_link_in_an_objects_place_is_neither_read_nor_written_through(attacked: Attacked) -> None:
    link = attacked.root / "run" / "deep" / "good"
    link.unlink()
    link.symlink_to(attacked.outside / "secret")
    assert attacked.bucket.stat("run/deep/good") is None
    with pytest.raises(ObjectMissingError):
        attacked.bucket.read("run/deep/good")
    attacked.bucket.write("run/deep/good", b"good")
    assert attacked.bucket.read("run/deep/good") == b"good"
    assert attacked.held()


def test_a_temporary_folder_that_is_a_link_is_not_used_and_nothing_behind_it_is_deleted(attacked: Attacked) -> None:
    shutil.rmtree(attacked.root / TEMPORARY)
    (attacked.root / TEMPORARY).symlink_to(attacked.outside)
    again = open_bucket(attacked.root.as_uri())
    with pytest.raises(CheckpointError, match="a link is not followed"):
        again.write("x", b"1")
    assert attacked.held()
    assert again.stat("x") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_temporary_folder_of_another_user_is_not_used(attacked: Attacked) -> None:
    os.chown(attacked.root / TEMPORARY, 4242, 4242)
    with pytest.raises(CheckpointError, match=r"hvdcloud-tmp belongs to another user, with the id 4242") as caught:
        attacked.bucket.write("x", b"1")
    assert caught.value.hint == f"rm -r {attacked.root / TEMPORARY}"


@pytest.mark.timeout(20)
def test_what_a_job_puts_into_the_temporary_folder_stops_no_writer(attacked: Attacked) -> None:
    temporary = attacked.root / TEMPORARY
    os.mkfifo(temporary / "fifo")
    (temporary / "link").symlink_to(attacked.outside / "secret")
    (temporary / "folder").mkdir()
    (temporary / "file").write_bytes(b"left behind")
    os.utime(temporary / "file", (0, 0))
    open_bucket(attacked.root.as_uri()).write("x", b"1")
    assert attacked.held()
    assert sorted(path.name for path in temporary.iterdir()) == ["fifo", "folder", "link"]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_file_is_no_object_and_stops_no_reader(attacked: Attacked, tmp_path: Path, kind: str) -> None:
    path = attacked.root / "run" / "odd"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero, which has no end
        except PermissionError:
            pytest.skip("only root can make devices")
    assert attacked.bucket.stat("run/odd") is None
    assert [info.name for info in attacked.bucket.list("run/")] == ["run/deep/good"]
    with pytest.raises(ObjectMissingError):
        attacked.bucket.read("run/odd")
    assert isinstance(attacked.fetch("run/odd", tmp_path / "target"), ObjectMissingError)


@pytest.mark.timeout(20)
def test_a_checkpoint_that_becomes_a_fifo_or_a_link_before_it_is_sent_is_gone(attacked: Attacked) -> None:
    source = attacked.root.parent / "source"
    os.mkfifo(source)
    with pytest.raises(ChangedWhileUploadingError):
        attacked.bucket.upload(source, "x")
    source.unlink()
    source.symlink_to(attacked.outside / "secret")
    with pytest.raises(ChangedWhileUploadingError):
        attacked.bucket.upload(source, "x")
    assert attacked.bucket.stat("x") is None


def test_folders_deeper_than_any_name_end_no_listing(attacked: Attacked) -> None:
    descriptor = os.open(attacked.root / "run", os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    try:
        assert [info.name for info in attacked.bucket.list("")] == ["run/deep/good"]
    finally:
        # Python's own rmtree, which ends the test, is not made for this depth.
        remove_chain(attacked.root / "run" / "d")


def remove_chain(top: Path) -> None:
    """Remove folders that hold one folder each."""
    above = os.open(top.parent, os.O_RDONLY)
    while True:
        try:
            os.rmdir(top.name, dir_fd=above)
            break
        except OSError:
            # Its only folder takes its place.
            os.rename(f"{top.name}/d", "next", src_dir_fd=above, dst_dir_fd=above)
            os.rmdir(top.name, dir_fd=above)
            os.rename("next", top.name, src_dir_fd=above, dst_dir_fd=above)
    os.close(above)


def test_a_folder_that_flips_between_real_and_link_never_leads_out(attacked: Attacked) -> None:
    """However the replacement falls between our steps, what is done is done below the bucket."""
    place, link = (os.fsencode(attacked.root / "run" / name) for name in ("deep", "link"))
    (attacked.root / "run" / "link").symlink_to(attacked.outside)
    exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if exchange is None:
        pytest.skip("this system can't exchange two names in one step")
    stop = threading.Event()

    def flip() -> None:
        while not stop.is_set():
            assert exchange(AT_FDCWD, place, AT_FDCWD, link, RENAME_EXCHANGE) == 0

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        done = 0
        for _ in range(300):
            with contextlib.suppress(CheckpointError):
                attacked.bucket.write("run/deep/secret", b"evil")
                done += 1
            with contextlib.suppress(ObjectMissingError):
                assert attacked.bucket.read("run/deep/secret") == b"evil"
        assert done
    finally:
        stop.set()
        thread.join(timeout=300)
    assert attacked.held()


@pytest.mark.parametrize(
    "url", ["", "/tmp", "s3://x", "file://host/x", "file:x", "file:///x?y", "gs://", "gs:///x", "GS://x"]
)
def test_only_the_two_kinds_of_url_are_buckets(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_bucket(url)
    assert "gs://BUCKET" in caught.value.hint
