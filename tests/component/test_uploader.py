"""Real files, real writers, a real bucket: what is being written stays, what is done goes, kill -9 tears nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from hvdcloud.checkpoints.manifest import Entry, Manifest, read_manifest, run_prefix
from hvdcloud.checkpoints.pull import PulledRun, pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles
from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.storage.base import Bucket, BucketUnreachableError, ObjectInfo
from hvdcloud.storage.checksum import crc32c_of_bytes
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.open import open_bucket
from tests.support.harness import DEADLINE, sizes, until

CLUSTER, RUN = "digits", "20261120-101500-abc123"
PREFIX = run_prefix(CLUSTER, RUN)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / RUN
    path.mkdir(parents=True)
    return path


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"file://{tmp_path}/bucket")


def uploader(bucket: Bucket, directory: Path, *, node: int = 0, quiet_seconds: float = 0.0) -> Uploader:
    return Uploader(bucket, cluster=CLUSTER, run=RUN, node=node, directory=directory, quiet_seconds=quiet_seconds)


def manifest_of(bucket: Bucket, node: int = 0) -> Manifest:
    manifest = read_manifest(bucket, cluster=CLUSTER, run=RUN, node=node)
    assert manifest is not None
    return manifest


def files_of(bucket: Bucket, node: int = 0) -> dict[str, Entry]:
    return {entry.name: entry for entry in manifest_of(bucket, node).files}


def pulled(bucket: Bucket, folder: Path) -> PulledRun:
    """What a laptop gets that has pulled nothing before."""
    verified_files = VerifiedFiles(folder / "verified.json")
    return pull(bucket, cluster=CLUSTER, run=RUN, target=folder / "pulled", verified_files=verified_files)


class Scanned(NamedTuple):
    """What a scan came to, and which files it uploaded."""

    uploaded: list[str]
    pending: Sequence[str]
    errors: Sequence[str]
    skipped: Sequence[str]


def scan(up: Uploader, *, final: bool = False) -> Scanned:
    up.uploaded.clear()
    report = up.scan(final=final)
    assert report.files == len(up.uploaded)
    return Scanned(sorted(up.uploaded), report.pending, report.errors, report.skipped)


def finish(up: Uploader, seconds: float = 30.0) -> Scanned:
    up.uploaded.clear()
    report = up.finish(seconds)
    return Scanned(sorted(up.uploaded), report.pending, report.errors, report.skipped)


def nothing(result: Scanned) -> bool:
    return not any(result)


def test_new_and_changed_files_go_and_unchanged_ones_do_not(bucket: Bucket, directory: Path) -> None:
    up = uploader(bucket, directory)
    (directory / "a.pt").write_bytes(b"one")
    (directory / "deep" / "er").mkdir(parents=True)
    (directory / "deep" / "er" / "b.pt").write_bytes(b"two")
    assert scan(up).uploaded == ["a.pt", "deep/er/b.pt"]
    first = files_of(bucket)
    assert (first["a.pt"].size, first["a.pt"].crc32c) == (3, crc32c_of_bytes(b"one"))
    assert first["a.pt"].modified == (directory / "a.pt").stat().st_mtime
    stat = bucket.stat(PREFIX + "a.pt")
    assert stat is not None
    assert stat.generation == first["a.pt"].generation
    assert nothing(scan(up))
    os.utime(directory / "a.pt")
    assert nothing(scan(up)), "the same bytes with another time are the same checkpoint"
    (directory / "a.pt").write_bytes(b"ONE")
    assert scan(up).uploaded == ["a.pt"]
    assert files_of(bucket)["a.pt"].generation > first["a.pt"].generation
    assert bucket.read(PREFIX + "a.pt") == b"ONE"
    assert not manifest_of(bucket).complete


def test_what_lies_too_deep_for_an_objects_name_gets_a_shorter_one(bucket: Bucket, directory: Path) -> None:
    levels = [str(directory)]
    for _ in range(1100):
        levels.append(f"{levels[-1]}/d")
        Path(levels[-1]).mkdir()
    deepest = Path(levels[-1], "x.pt")
    deepest.write_bytes(b"x")
    (directory / "a.pt").write_bytes(b"one")
    result = scan(uploader(bucket, directory))
    deepest.unlink()
    for level in reversed(levels[1:]):
        Path(level).rmdir()
    short, plain = result.uploaded
    assert (plain, short.rpartition("/")[2], len(short)) == ("a.pt", "x.pt", 21)
    assert bucket.read(PREFIX + short) == b"x"
    assert not result.errors


def test_the_first_scan_of_an_empty_directory_tells_the_bucket_of_this_node(bucket: Bucket, tmp_path: Path) -> None:
    up = uploader(bucket, tmp_path / "not there yet")
    assert nothing(scan(up))
    assert manifest_of(bucket) == Manifest(cluster=CLUSTER, run=RUN, node=0, complete=False, files=[])
    assert nothing(finish(up))
    assert manifest_of(bucket).complete


def test_a_deleted_file_stays_in_the_bucket(bucket: Bucket, directory: Path) -> None:
    up = uploader(bucket, directory)
    (directory / "a").write_bytes(b"1")
    scan(up)
    (directory / "a").unlink()
    assert nothing(finish(up))
    assert set(files_of(bucket)) == {"a"}
    assert bucket.read(PREFIX + "a") == b"1"


def test_a_file_that_changed_a_moment_ago_waits_but_not_for_the_final_scan(bucket: Bucket, directory: Path) -> None:
    up = uploader(bucket, directory, quiet_seconds=3600)
    (directory / "a").write_bytes(b"1")
    assert scan(up).pending == ["a"]
    assert files_of(bucket) == {}
    assert scan(up, final=True).uploaded == ["a"]


def test_a_file_dated_in_the_future_goes_all_the_same(bucket: Bucket, directory: Path) -> None:
    up = uploader(bucket, directory, quiet_seconds=0.1)
    (directory / "a").write_bytes(b"1")
    os.utime(directory / "a", (4e9, 4e9))
    until(lambda: scan(up).uploaded == ["a"], what="the file to have rested")


def test_a_file_open_for_writing_in_another_process_waits_even_in_the_end(bucket: Bucket, directory: Path) -> None:
    (directory / "done").write_bytes(b"done")
    code = "import sys\nf = open(sys.argv[1], 'wb')\nf.write(b'half')\nf.flush()\nprint(flush=True)\ninput()\n"
    code += "f.write(b'!')"
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(directory / "open")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    writer.stdout.readline()
    up = uploader(bucket, directory)
    result = scan(up, final=True)
    assert (result.uploaded, result.pending) == (["done"], ["open"])
    result = finish(up, seconds=0.3)
    assert result.pending == ["open"]
    assert not manifest_of(bucket).complete
    writer.communicate("\n", timeout=300)
    assert finish(up).uploaded == ["open"]
    assert bucket.read(PREFIX + "open") == b"half!"
    assert manifest_of(bucket).complete


WRITER = """
import os, sys, time
# Rewrites one file again and again, in place and in pieces, as torch.save does; every version is of one byte.
# The pauses grow until they are long enough for this machine.
path, enough, parent, version = *sys.argv[1:], os.getppid(), 0
while os.getppid() == parent and not os.path.exists(enough):
    version = version % 250 + 1
    with open(path, "wb", buffering=0) as file:
        for _ in range(8):
            file.write(bytes([version]) * 65536)
            time.sleep(0.003)
    time.sleep(0.02 * version)
"""


@pytest.mark.parametrize("final", [False, True])
def test_a_checkpoint_rewritten_all_the_time_is_never_torn(bucket: Bucket, directory: Path, final: bool) -> None:
    path, enough = directory / "latest.pt", directory.with_name("enough")
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(enough)])
    up = uploader(bucket, directory)
    uploads: list[str] = []

    def scanned() -> int:
        result = scan(up, final=final)
        assert result.errors == []
        uploads.extend(result.uploaded)
        if result.uploaded:
            data = bucket.read(PREFIX + "latest.pt")
            assert data == data[:1] * 8 * 65536, "half of one version and half of another"
        return len(uploads)

    until(lambda: scanned() >= 3, what="three versions in the bucket", pause=0.05)
    enough.touch()
    assert writer.wait(20) == 0
    finish(up)
    assert bucket.read(PREFIX + "latest.pt") == path.read_bytes()


def test_symbolic_links_are_followed_inside_the_directory_only(bucket: Bucket, directory: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    (directory / "epoch-1").mkdir()
    (directory / "epoch-1" / "w").write_bytes(b"weights")
    (directory / "latest").symlink_to("epoch-1")
    (directory / "w").symlink_to(directory / "epoch-1" / "w")
    (directory / "loop").symlink_to(".")
    (directory / "epoch-1" / "up").symlink_to("..")
    (directory / "nowhere").symlink_to("nothing")
    (directory / "secret").symlink_to(tmp_path / "secret")
    (directory / "outside").symlink_to(tmp_path)
    neighbour = directory.with_name(directory.name + "-of-another")
    neighbour.mkdir()
    (neighbour / "w").write_bytes(b"not of this run")
    (directory / "neighbour").symlink_to(neighbour)
    os.mkfifo(directory / "fifo")
    result = finish(uploader(bucket, directory))
    assert result.uploaded == ["epoch-1/w", "latest/w", "w"]
    assert len(result.skipped) == 3
    assert all("outside its folder" in line for line in result.skipped)
    assert manifest_of(bucket).complete


def test_a_name_that_no_bucket_takes_is_escaped_and_is_no_other_files_name(
    bucket: Bucket, directory: Path, tmp_path: Path
) -> None:
    names = {b"good": "good", b"new\nline": "new%0Aline", b"caf\xe9.pt": "caf%E9.pt~", b"caf%E9.pt": "caf%E9.pt"}
    long = b"\xe9" * 250
    for name in (*names, long):
        Path(os.fsdecode(os.fsencode(directory) + b"/" + name)).write_bytes(name)
    result = finish(uploader(bucket, directory))
    assert not result.errors
    assert manifest_of(bucket).complete, "so that no node waits for what cannot come"
    for name, stored in names.items():
        assert bucket.read(PREFIX + stored) == name
    here = pulled(bucket, tmp_path)
    assert here.files == 5
    assert {path.read_bytes() for path in here.folder.iterdir() if path.is_file()} == {*names, long}


def test_nodes_and_our_own_names_stay_apart(bucket: Bucket, directory: Path) -> None:
    for name in ("x", "@node-1/x", ".hvdcloud/manifest-0.json"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(name)
    finish(uploader(bucket, directory))
    finish(uploader(bucket, directory, node=1))
    assert set(files_of(bucket)) == {"x", "@node-0/@node-1/x"}
    assert set(files_of(bucket, 1)) == {"@node-1/x", "@node-1/@node-1/x"}
    assert bucket.read(PREFIX + "@node-1/x") == b"x"


def test_a_restarted_uploader_continues_from_the_manifest(bucket: Bucket, directory: Path) -> None:
    for name in ("same", "changed"):
        (directory / name).write_bytes(b"1")
    finish(uploader(bucket, directory))
    assert manifest_of(bucket).complete
    assert nothing(scan(uploader(bucket, directory)))
    assert manifest_of(bucket).complete, "looking at a finished run leaves it finished"
    uploaded_at = (directory / "changed").stat().st_mtime
    (directory / "changed").write_bytes(b"2")
    os.utime(directory / "changed", (uploaded_at + 1, uploaded_at + 1))
    up = uploader(bucket, directory)
    assert scan(up).uploaded == ["changed"], "of the same size as before"
    assert not manifest_of(bucket).complete
    assert set(files_of(bucket)) == {"same", "changed"}
    assert bucket.read(PREFIX + "changed") == b"2"


def test_two_uploaders_of_one_node_lose_nothing(bucket: Bucket, directory: Path) -> None:
    one, two = uploader(bucket, directory), uploader(bucket, directory)
    scan(one)
    scan(two)
    (directory / "a").write_bytes(b"1")
    scan(one)
    # Only the manifest names it now: the other one cannot find it in the directory.
    (directory / "a").unlink()
    (directory / "b").write_bytes(b"2")
    finish(two)
    (directory / "b").unlink()
    (directory / "c").write_bytes(b"3")
    finish(one)
    assert set(files_of(bucket)) == {"a", "b", "c"}
    assert manifest_of(bucket).complete


def test_of_two_uploaders_of_one_node_the_later_upload_counts(bucket: Bucket, directory: Path) -> None:
    (directory / "a").write_bytes(b"1")
    one, two = uploader(bucket, directory), uploader(bucket, directory)
    scan(one)
    scan(two)
    (directory / "a").write_bytes(b"22")
    scan(two)
    newest = files_of(bucket)["a"]
    (directory / "a").unlink()
    (directory / "b").write_bytes(b"3")
    scan(one)
    assert files_of(bucket)["a"] == newest
    assert newest.size == 2


class MeddlingBucket(FolderBucket):
    """A folder, and something that happens at the moment at which a certain file is uploaded, once, or any."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.when: dict[str, Callable[[], object]] = {}
        self.always: Callable[[], object] = lambda: None

    def upload(
        self, path: Path, name: str, *, if_generation: int | None = None, crc32c: str | None = None
    ) -> ObjectInfo:
        self.always()
        self.when.pop(path.name, lambda: None)()
        return super().upload(path, name, if_generation=if_generation, crc32c=crc32c)


def test_a_network_failure_is_reported_and_made_good_later(tmp_path: Path, directory: Path) -> None:
    def fail() -> None:
        raise BucketUnreachableError("the network is down", hint="wait")

    bucket = MeddlingBucket(tmp_path / "bucket")
    bucket.always = fail
    for number in range(30):
        (directory / f"{number:02}").write_bytes(b"1")
    up = uploader(bucket, directory)
    result = scan(up)
    assert result.uploaded == []
    assert result.errors[0] == "the network is down"
    assert len(result.errors) + len(result.pending) == 30
    announced = {entry.name for entry in manifest_of(bucket).uploading}
    assert announced.isdisjoint(result.pending), "those were not tried"
    assert len(announced) == len(result.errors), "these may have arrived"
    result = finish(up, seconds=0.5)
    assert result.errors
    assert not manifest_of(bucket).complete
    for thread in threading.enumerate():
        # The finish that was given up may still be at work, and would upload some.
        if thread.name == "hvdcloud-finish":
            thread.join(10)
    bucket.always = lambda: None
    assert len(finish(up).uploaded) == 30
    assert manifest_of(bucket).complete


def lose_the_answer(bucket: MeddlingBucket, path: Path) -> Callable[[], None]:
    """Has a file arrive, and its uploader hear nothing of it."""

    def lose() -> None:
        FolderBucket(bucket.root).upload(path, PREFIX + path.name)
        raise BucketUnreachableError("no answer", hint="wait")

    return lose


def test_a_checkpoint_that_arrived_without_an_answer_can_be_pulled(tmp_path: Path, directory: Path) -> None:
    bucket = MeddlingBucket(tmp_path / "bucket")
    (directory / "latest").write_bytes(b"1")
    scan(uploader(bucket, directory))
    (directory / "latest").write_bytes(b"22")
    bucket.when["latest"] = lose_the_answer(bucket, directory / "latest")
    assert uploader(bucket, directory).scan().errors == ["no answer"]
    # The node is lost now: the manifest has to match what is in the bucket.
    assert [(entry.name, entry.size) for entry in manifest_of(bucket).uploading] == [("latest", 2)]
    assert (pulled(bucket, tmp_path).folder / "latest").read_bytes() == b"22"


def test_a_checkpoint_without_an_answer_can_be_pulled_while_the_next_is_on_its_way(
    tmp_path: Path, directory: Path
) -> None:
    bucket = MeddlingBucket(tmp_path / "bucket")
    up = uploader(bucket, directory)
    (directory / "latest").write_bytes(b"1")
    bucket.when["latest"] = lose_the_answer(bucket, directory / "latest")
    assert scan(up).errors == ["no answer"]
    (directory / "latest").write_bytes(b"22")
    found: list[bytes] = []
    # The node is lost at this moment.
    bucket.when["latest"] = lambda: found.append((pulled(bucket, tmp_path).folder / "latest").read_bytes())
    assert scan(up).uploaded == ["latest"]
    assert found == [b"1"]
    assert not manifest_of(bucket).uploading


@pytest.fixture
def meddling(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> MeddlingBucket:
    """`first` is uploaded before `second` is read, both having been found by the same look at the directory."""
    monkeypatch.setattr("hvdcloud.node.uploads.uploader._BATCH_FILES", 1)
    for seconds, name in enumerate(("first", "second")):
        (directory / name).write_bytes(b"1")
        os.utime(directory / name, (1e9 + seconds, 1e9 + seconds))
    return MeddlingBucket(tmp_path / "bucket")


def test_an_upload_is_announced_before_it_begins(meddling: MeddlingBucket, directory: Path) -> None:
    seen: list[Entry] = []
    meddling.when["first"] = lambda: seen.extend(manifest_of(meddling).uploading)
    uploader(meddling, directory).scan()
    assert [(entry.name, entry.size, entry.crc32c) for entry in seen] == [("first", 1, crc32c_of_bytes(b"1"))]
    assert not manifest_of(meddling).uploading


def test_a_file_that_changes_while_it_is_sent_replaces_nothing_and_is_pending(
    meddling: MeddlingBucket, directory: Path
) -> None:
    up = uploader(meddling, directory)
    scan(up)
    (directory / "first").write_bytes(b"22")
    meddling.when["first"] = lambda: (directory / "first").write_bytes(b"half")
    result = scan(up, final=True)
    assert (result.uploaded, result.pending, result.errors) == ([], ["first"], [])
    assert meddling.read(PREFIX + "first") == b"1"
    assert files_of(meddling)["first"].size == 1
    assert not manifest_of(meddling).uploading, "it is not in the bucket for sure"
    assert finish(up).uploaded == ["first"]
    assert meddling.read(PREFIX + "first") == b"half"


def test_a_file_that_changes_before_it_is_read_is_pending(meddling: MeddlingBucket, directory: Path) -> None:
    meddling.when["first"] = lambda: (directory / "second").write_bytes(b"half")
    up = uploader(meddling, directory)
    result = scan(up, final=True)
    assert (result.uploaded, result.pending, result.errors) == (["first"], ["second"], [])
    assert meddling.stat(PREFIX + "second") is None
    assert finish(up).uploaded == ["second"]
    assert manifest_of(meddling).complete


def test_a_file_opened_for_writing_after_the_first_check_is_pending(meddling: MeddlingBucket, directory: Path) -> None:
    with contextlib.ExitStack() as writers:
        meddling.when["first"] = lambda: writers.enter_context((directory / "second").open("r+b"))
        result = scan(uploader(meddling, directory), final=True)
    assert (result.uploaded, result.pending, result.errors) == (["first"], ["second"], [])
    assert meddling.stat(PREFIX + "second") is None


def test_a_file_that_cannot_be_read_keeps_the_run_incomplete(meddling: MeddlingBucket, directory: Path) -> None:
    def unreadable() -> None:
        (directory / "second").unlink()
        (directory / "second").symlink_to("second")

    meddling.when["first"] = unreadable
    up = uploader(meddling, directory)
    result = finish(up)
    assert (result.uploaded, result.pending) == (["first"], [])
    assert [error.partition(":")[0] for error in result.errors] == ["second can't be read"]
    assert not manifest_of(meddling).complete


def test_finish_keeps_its_deadline_when_the_bucket_hangs(tmp_path: Path, directory: Path) -> None:
    (directory / "a").write_bytes(b"1")
    bucket = MeddlingBucket(tmp_path / "bucket")
    bucket.when["a"] = lambda: time.sleep(120)
    result = finish(uploader(bucket, directory), seconds=0.5)
    assert result.pending == ["a"]
    assert "in time" in result.errors[0]


def test_finish_waits_for_a_large_file(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdcloud.node.uploads.uploader._SLOWEST", 1)
    (directory / "a").write_bytes(bytes(int(DEADLINE)))
    bucket = MeddlingBucket(tmp_path / "bucket")
    bucket.when["a"] = lambda: time.sleep(1)
    result = finish(uploader(bucket, directory), seconds=0.5)
    assert (result.uploaded, result.pending, result.errors) == (["a"], [], [])
    assert manifest_of(bucket).complete


PROCESS = """
import sys
from pathlib import Path
from hvdcloud.storage.open import open_bucket
from hvdcloud.node.uploads.uploader import Uploader
url, cluster, run, directory = sys.argv[1:]
print("started", flush=True)
up = Uploader(open_bucket(url), cluster=cluster, run=run, node=0, directory=Path(directory), quiet_seconds=0)
result = up.finish(60)
assert not result.pending and not result.errors, result
"""


def test_kill_9_in_the_middle_of_an_upload_tears_nothing_and_a_restart_continues(
    bucket: Bucket, directory: Path, tmp_path: Path
) -> None:
    (directory / "latest.pt").write_bytes(b"good" * 1000)
    scan(uploader(bucket, directory))
    for number in range(300):
        (directory / f"{number:03}.pt").write_bytes(os.urandom(2000))
    (directory / "latest.pt").write_bytes(os.urandom(60_000_000))
    arguments = [sys.executable, "-c", PROCESS, bucket.url, CLUSTER, RUN, str(directory)]
    temporary = tmp_path / "bucket" / ".hvdcloud-tmp"
    killed_inside = 0
    for attempt in range(4):
        process = subprocess.Popen(arguments, stdout=subprocess.PIPE, start_new_session=True)
        assert process.stdout is not None
        process.stdout.readline()
        # Kill it when the large file is on its way.
        until(lambda: any(size > 1 << 20 for size in sizes(temporary, "*")), what="the large file's upload", pause=0.05)
        time.sleep(0.01 * attempt)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=300)
        killed_inside += process.returncode == -signal.SIGKILL
        for left in temporary.iterdir():
            os.utime(left, (0, 0))  # The next one comes much later.
        # A pull of what is there now finds only whole files.
        result = pulled(bucket, tmp_path)
        latest = (result.folder / "latest.pt").read_bytes()
        assert latest in (b"good" * 1000, (directory / "latest.pt").read_bytes())
        assert process.returncode == 0 or not result.complete
    assert killed_inside > 0
    subprocess.run(arguments, check=True, timeout=300, stdout=subprocess.DEVNULL)
    assert manifest_of(bucket).complete
    assert len(files_of(bucket)) == 301
    assert list(temporary.iterdir()) == [], "what the killed ones left is swept"
    result = pulled(bucket, tmp_path)
    assert result.complete
    for path in directory.iterdir():
        assert (result.folder / path.name).read_bytes() == path.read_bytes()
