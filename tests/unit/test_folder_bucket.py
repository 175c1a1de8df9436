"""What only a folder has to care for: owners, killed writers, other processes, odd files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from itertools import takewhile
from pathlib import Path

import pytest

from hvdcloud.errors import CapacityError, CheckpointError, UsageError
from hvdcloud.storage.base import PreconditionError, open_bucket
from hvdcloud.storage.folder import TEMPORARY

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@needs_root
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


@needs_root
def test_the_owner_can_delete_it_all(tmp_path: Path) -> None:
    for folder in takewhile(lambda folder: folder != Path(tempfile.gettempdir()), (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)
    root = tmp_path / "bucket"
    root.mkdir()
    os.chown(root, 65534, 65534)
    open_bucket(root.as_uri()).write("a/b", b"1")
    code = "import os, shutil, sys; os.setgid(65534); os.setuid(65534); shutil.rmtree(sys.argv[1] + '/a')"
    subprocess.run([sys.executable, "-c", code, str(root)], check=True, timeout=30)
    assert not (root / "a").exists()


def test_a_generation_survives_a_restart_and_a_clock_that_goes_back(tmp_path: Path) -> None:
    first = open_bucket(f"file://{tmp_path}").write("x", b"1")
    bucket = open_bucket(f"file://{tmp_path}")
    stat = bucket.stat("x")
    assert stat is not None
    assert stat.generation == first.generation
    future = first.generation + 10**18
    os.utime(tmp_path / "x", ns=(future, future))
    assert bucket.write("x", b"2").generation > future


RACE = """
import sys
import tempfile
from itertools import takewhile
from hvdcloud.storage.base import ObjectMissingError, PreconditionError, open_bucket
bucket = open_bucket(sys.argv[1])
print("ready", flush=True)
input()
won = 0
for number in range(50):
    try:
        bucket.write(f"lock-{number}", b"x", if_generation=0)
        won += 1
    except PreconditionError:
        pass
    while True:
        try:
            generation = bucket.stat("counter").generation
            value = int(bucket.read("counter", generation=generation))
            bucket.write("counter", str(value + 1).encode(), if_generation=generation)
            break
        except (PreconditionError, ObjectMissingError):
            pass
print(won)
"""


def test_processes_exclude_each_other(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    bucket = open_bucket(url)
    bucket.write("counter", b"0")
    processes = [
        subprocess.Popen([sys.executable, "-c", RACE, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    won = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(won) == 50
    assert bucket.read("counter") == b"150"


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    bucket = open_bucket(f"file://{tmp_path}/bucket")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        "import sys; from pathlib import Path; from hvdcloud.storage.base import open_bucket;"
        "open_bucket(sys.argv[1]).upload(Path(sys.argv[2]), 'x')"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, bucket.url, str(fifo)])
    with fifo.open("wb") as feed:  # opens once the writer has begun
        feed.write(b"data" * 1000)
        feed.flush()
        open_bucket(bucket.url).write("y", b"")
        assert len(list((tmp_path / "bucket" / TEMPORARY).iterdir())) == 1
        writer.send_signal(signal.SIGKILL)
        writer.wait(timeout=20)
    assert len(list((tmp_path / "bucket" / TEMPORARY).iterdir())) == 1
    again = open_bucket(bucket.url)
    again.write("z", b"")
    assert list((tmp_path / "bucket" / TEMPORARY).iterdir()) == []
    assert [info.name for info in again.list("")] == ["y", "z"]
    assert again.prefixes("") == []


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


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    root = tmp_path / "small"
    root.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(root)], capture_output=True)
    if mounted.returncode:
        pytest.skip("no permission to mount a small file system")
    try:
        bucket = open_bucket(root.as_uri())
        bucket.write("x", b"1")
        with pytest.raises(CapacityError, match="no space left"):
            bucket.write("x", b"2" * (2 << 20))
        assert bucket.read("x") == b"1"
        assert list((root / TEMPORARY).iterdir()) == []
    finally:
        subprocess.run(["umount", str(root)], check=True)
