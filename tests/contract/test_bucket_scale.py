"""More than fits into the memory allowed, and many files, from the checkpoint directory to a bucket and back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CLUSTER, RUN = "digits", "20261120-101500-abc123"
FLAT = 256 << 20
"""Bytes of memory that are enough for any checkpoint: the library's and our code, and a few chunks."""
LARGE = 576 << 20
"""Bytes of a checkpoint: a process that keeps half of it in memory needs more than `FLAT`."""
FLAT_FOR_SMALL = 112 << 20
"""Bytes of memory that are enough for any number of small files: so little that a few show what each leaves behind."""

TRANSFER = """
import json, sys, time
from pathlib import Path
from hvdcloud.storage.open import open_bucket
from hvdcloud.checkpoints.verified_files import VerifiedFiles
from hvdcloud.checkpoints.pull import pull
from hvdcloud.node.uploads.uploader import Uploader
what, url, endpoint, cluster, run, source, target, ledger = sys.argv[1:]
bucket = open_bucket(url, endpoint=endpoint or None)
started = time.monotonic()
if what == "upload":
    up = Uploader(bucket, cluster=cluster, run=run, node=0, directory=Path(source), quiet_seconds=0)
    result = up.finish(300)
    assert not result.pending and not result.errors, result
    files = result.files
else:
    record = VerifiedFiles(Path(ledger))
    files = pull(bucket, cluster=cluster, run=run, target=Path(target), verified_files=record).fetched
seconds = time.monotonic() - started
# Not getrusage: a child's ru_maxrss begins with what its parent had.
rss = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
print(json.dumps({"files": files, "seconds": seconds, "rss": rss}))
"""


@pytest.fixture(params=["folder", "strict"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """URL and endpoint; the server is a process of its own, whose memory is looked at too."""
    if request.param == "folder":
        yield f"file://{tmp_path}/bucket", ""
        shutil.rmtree(tmp_path / "bucket")  # pytest keeps the folders of the last three sessions: not with such files
        return
    arguments = ["--port", "0", "--folder", str(tmp_path / "server"), "--no-md5", "--bucket", "bucket"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.standins.storage", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert process.stdout is not None
        yield "gs://bucket", process.stdout.readline().strip()
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert int(status.split("VmHWM:")[1].split()[0]) * 1024 < FLAT
    finally:
        process.terminate()
        process.communicate(timeout=300)
        shutil.rmtree(tmp_path / "server")


def transfer(what: str, address: tuple[str, str], tmp_path: Path) -> dict[str, float]:
    arguments = [what, *address, CLUSTER, RUN, str(tmp_path / "node"), str(tmp_path / "out"), str(tmp_path / "ledger")]
    done = subprocess.run(
        [sys.executable, "-c", TRANSFER, *arguments], stdout=subprocess.PIPE, text=True, check=True, timeout=300
    )
    figures: dict[str, float] = json.loads(done.stdout)
    sys.stdout.write(f"{what} {address[0]}: {figures}\n")
    return figures


def test_a_checkpoint_larger_than_the_memory_allowed_needs_no_more_than_a_small_one(
    address: tuple[str, str], tmp_path: Path
) -> None:
    source = tmp_path / "node" / "big.pt"
    source.parent.mkdir()
    with source.open("wb") as file:
        # Mostly a hole: it is read and sent as zeros, and spares the disk one write of three.
        for number in range(LARGE >> 20):
            file.seek(number << 20)
            file.write(number.to_bytes(4, "big") + os.urandom(4092))
        file.truncate(LARGE)
    for what in ("upload", "pull"):
        figures = transfer(what, address, tmp_path)
        assert figures["files"] == 1
        assert figures["rss"] < FLAT
        if what == "upload":
            source.unlink()  # the disk need not hold three of them
    # Verified by CRC32C on arrival; here only that it is the one.
    arrived = tmp_path / "out" / RUN / "big.pt"
    assert arrived.stat().st_size == LARGE
    with arrived.open("rb") as file:
        for number in (0, 177, (LARGE >> 20) - 1):
            file.seek(number << 20)
            assert file.read(4) == number.to_bytes(4, "big")
    arrived.unlink()


@pytest.mark.nightly
def test_many_small_files_go_through_with_flat_memory(address: tuple[str, str], tmp_path: Path) -> None:
    # Over HTTP a file costs some milliseconds of both processes' time, whatever its size.
    count = 480 if address[1] else 1200
    for number in range(count):
        path = tmp_path / "node" / f"{number % 50:02}" / f"{number}.pt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(number.to_bytes(4, "big") * 500)
    for what in ("upload", "pull"):
        figures = transfer(what, address, tmp_path)
        assert figures["files"] == count
        assert figures["rss"] < FLAT_FOR_SMALL
        assert figures["seconds"] < 100
    arrived = {path.name: path.read_bytes() for path in (tmp_path / "out" / RUN).rglob("*.pt")}
    assert arrived == {f"{number}.pt": number.to_bytes(4, "big") * 500 for number in range(count)}
