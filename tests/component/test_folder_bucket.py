"""A folder as bucket among several processes, other owners and on a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hvdcloud.errors import CapacityError
from hvdcloud.storage.folder_tree import TEMPORARY
from hvdcloud.storage.open import open_bucket
from tests.support.harness import until

RACE = """
import sys
import tempfile
from itertools import takewhile
from hvdcloud.storage.base import ObjectMissingError, PreconditionError
from hvdcloud.storage.open import open_bucket
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
    won = [int(process.communicate(timeout=300)[0]) for process in processes]
    assert sum(won) == 50
    assert bucket.read("counter") == b"150"


def test_what_a_killed_writer_left_is_swept_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    bucket = open_bucket(f"file://{tmp_path}/bucket")
    source, temporary = tmp_path / "source", tmp_path / "bucket" / TEMPORARY
    with source.open("wb") as file:
        file.truncate(4 << 30)
    code = (
        "import sys; from pathlib import Path; from hvdcloud.storage.open import open_bucket;"
        "open_bucket(sys.argv[1]).upload(Path(sys.argv[2]), 'x')"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, bucket.url, str(source)])
    until(lambda: any(path.stat().st_size for path in temporary.glob("*")), what="the writer to begin")
    writer.send_signal(signal.SIGSTOP)
    open_bucket(bucket.url).write("y", b"")
    (left,) = temporary.iterdir()
    writer.send_signal(signal.SIGKILL)
    writer.wait(timeout=300)
    # An hour later.
    an_hour_ago = left.stat().st_mtime - 3700
    os.utime(left, (an_hour_ago, an_hour_ago))
    again = open_bucket(bucket.url)
    again.write("z", b"")
    assert list(temporary.iterdir()) == []
    assert [info.name for info in again.list("")] == ["y", "z"]
    assert again.prefixes("") == []


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
