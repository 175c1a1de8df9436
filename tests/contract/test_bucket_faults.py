"""What `gs://` does when the network or the service fails: the strict stand-in breaks connections on command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.pull import PullError, pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles
from hvdcloud.errors import CredentialsError, ExitCode, UsageError
from hvdcloud.node.uploads.uploader import Uploader
from hvdcloud.storage.base import (
    Bucket,
    BucketUnreachableError,
    ChangedWhileUploadingError,
    CorruptObjectError,
    Download,
    PreconditionError,
)
from hvdcloud.storage.checksum import crc32c_of_bytes
from hvdcloud.storage.open import open_bucket
from tests.standins.storage import StorageServer, running_server
from tests.standins.storage.http import Request
from tests.standins.storage.store import Version

CLUSTER, RUN = "digits", "20261120-101500-abc123"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StorageServer]:
    with running_server(tmp_path / "server", page_size=3) as server:
        yield server


@pytest.fixture
def bucket(server: StorageServer) -> Bucket:
    return open_bucket("gs://bucket", endpoint=server.url, retry_seconds=4)


def fetch(bucket: Bucket, *items: Download) -> dict[str, Exception | None]:
    results: dict[str, Exception | None] = {}
    bucket.download_many(items, workers=4, on_done=lambda item, error: results.update({item.name: error}))
    return results


def item_of(name: str, target: Path, data: bytes, generation: int | None = None) -> Download:
    return Download(name=name, target=target, size=len(data), crc32c=crc32c_of_bytes(data), generation=generation)


@pytest.mark.parametrize("status", [503, 429, 500])
def test_a_service_that_recovers_is_not_noticed(server: StorageServer, bucket: Bucket, status: int) -> None:
    server.fault(path="/b/bucket/o", action={"status": status}, times=2)
    bucket.write("x", b"1")
    server.fault(path="alt=media", action={"status": status}, times=2)
    assert bucket.read("x") == b"1"
    server.fault(path="prefix=", action={"status": status}, times=2)
    assert [info.name for info in bucket.list("")] == ["x"]


def test_a_service_that_stays_down_is_an_error_within_the_time_set(server: StorageServer) -> None:
    bucket = open_bucket("gs://bucket", endpoint=server.url, retry_seconds=0.5)
    server.fault(path="", action={"status": 503}, times=1000)
    for call in (lambda: bucket.read("x"), lambda: bucket.write("x", b""), lambda: list(bucket.list(""))):
        with pytest.raises(BucketUnreachableError):
            call()


def test_a_bucket_that_does_not_exist_and_one_that_is_forbidden_say_so(server: StorageServer, bucket: Bucket) -> None:
    with pytest.raises(UsageError, match="gs://nothing does not exist"):
        list(open_bucket("gs://nothing", endpoint=server.url).list(""))
    server.fault(path="", action={"status": 403})
    with pytest.raises(CredentialsError) as caught:
        bucket.read("x")
    assert caught.value.code == ExitCode.CREDENTIALS


def test_a_broken_download_continues_where_it_was(server: StorageServer, bucket: Bucket, tmp_path: Path) -> None:
    data = bytes(range(256)) * 8192
    generation = bucket.write("x", data).generation
    server.fault(path="alt=media", action={"cut": "response", "after": 1_500_000})
    assert fetch(bucket, item_of("x", tmp_path / "x", data, generation)) == {"x": None}
    assert (tmp_path / "x").read_bytes() == data
    ranges = [request[3] for request in server.requests if "alt=media" in request[1] and request[2]]
    assert len(ranges) == 2
    assert ranges[1].startswith("bytes="), "the second request asks for the rest only"


def test_damage_in_a_resumed_download_is_noticed(server: StorageServer, bucket: Bucket, tmp_path: Path) -> None:
    """Google's library does not verify a download that it had to resume."""
    data = bytes(range(256)) * 8192
    bucket.write("x", data)
    server.store.corrupt("bucket", "x", offset=2_000_000)
    server.fault(path="alt=media", action={"cut": "response", "after": 1_500_000}, times=1)
    server.fault(path="alt=media", action={"cut": "response", "after": 1_500_000}, times=1, skip=1)
    assert isinstance(fetch(bucket, item_of("x", tmp_path / "x", data))["x"], CorruptObjectError)
    assert [path.name for path in tmp_path.iterdir()] == ["server"]


def test_a_slice_that_breaks_off_continues_and_damage_in_a_slice_is_noticed(
    server: StorageServer, bucket: Bucket, tmp_path: Path
) -> None:
    block = bytes(range(256)) * 4096
    source = tmp_path / "source"
    with source.open("wb") as file:
        for _ in range(66):
            file.write(block)
    info = bucket.upload(source, "x")
    item = Download(name="x", target=tmp_path / "x", size=info.size, crc32c=info.crc32c, generation=info.generation)
    server.fault(path="alt=media", action={"cut": "response", "after": 3_000_000}, times=2)
    assert fetch(bucket, item) == {"x": None}
    assert (tmp_path / "x").read_bytes() == source.read_bytes()
    (tmp_path / "x").unlink()
    server.store.corrupt("bucket", "x", offset=40_000_000)
    assert isinstance(fetch(bucket, item)["x"], CorruptObjectError)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["server", "source"]


def test_a_chunk_that_breaks_off_is_sent_again_and_the_object_is_whole(
    server: StorageServer, bucket: Bucket, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    with source.open("wb") as file:
        for number in range(40):
            file.write(bytes([number]) * (1 << 20))
    server.fault(method="PUT", path="upload_id", action={"cut": "request", "after": 5_000_000})
    server.fault(method="PUT", path="upload_id", action={"cut": "effect"})
    server.fault(method="PUT", path="upload_id", action={"status": 503})
    info = bucket.upload(source, "x")
    assert info.size == 40 << 20
    assert bucket.read("x", most=1 << 30) == source.read_bytes()
    assert sum(fault["hits"] for fault in server.faults.plain()) == 3


def test_an_upload_that_breaks_off_for_good_leaves_the_old_object(server: StorageServer, tmp_path: Path) -> None:
    bucket = open_bucket("gs://bucket", endpoint=server.url, retry_seconds=0.5)
    source = tmp_path / "source"
    source.write_bytes(b"n" * (20 << 20))
    good = bucket.write("x", b"good")
    server.fault(method="PUT", path="upload_id", action={"cut": "request", "after": 5_000_000}, times=1000)
    with pytest.raises(BucketUnreachableError):
        bucket.upload(source, "x")
    assert bucket.read("x", generation=good.generation) == b"good"


@pytest.mark.parametrize("size", [10, 9 << 20], ids=["in one request", "resumable"])
def test_a_creation_whose_answer_was_lost_still_counts_as_ours(
    server: StorageServer, bucket: Bucket, tmp_path: Path, size: int
) -> None:
    """The retry gets 412: by our own object."""
    source = tmp_path / "source"
    source.write_bytes(b"x" * size)
    method = "POST" if size == 10 else "PUT"
    server.fault(method=method, path="/upload/", action={"cut": "effect"})
    info = bucket.upload(source, "x", if_generation=0)
    stat = bucket.stat("x")
    assert stat is not None
    assert stat.generation == info.generation
    with pytest.raises(PreconditionError):
        bucket.upload(source, "x", if_generation=0)


@pytest.mark.parametrize("change", ["longer", "shorter", "other bytes", "gone"])
def test_a_file_that_changes_on_its_way_is_refused_and_the_object_stays(
    server: StorageServer, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source = tmp_path / "source"
    data = b"a" * (40 << 20)
    source.write_bytes(data)
    good = bucket.write("x", b"good")
    changes: dict[str, Callable[[], object]] = {
        "longer": lambda: source.write_bytes(data + b"a"),
        "shorter": lambda: source.write_bytes(data[:-5]),
        "other bytes": lambda: source.write_bytes(data[:-1] + b"b"),
        "gone": source.unlink,
    }
    crc32c = crc32c_of_bytes(data)
    if change == "gone":
        changes[change]()
    else:
        # In the middle: after the first of two chunks.
        take = server.uploads.resume

        def change_first(request: Request, bucket: str) -> Version | None:
            changes[change]()
            return take(request, bucket)

        monkeypatch.setattr(server.uploads, "resume", change_first)
    if change == "longer":
        # What was promised is what is sent: bytes appended later are another checkpoint.
        assert bucket.upload(source, "x", crc32c=crc32c).size == len(data)
        return
    with pytest.raises(ChangedWhileUploadingError):
        bucket.upload(source, "x", crc32c=crc32c)
    assert bucket.read("x", generation=good.generation) == b"good"


def test_an_upload_that_arrived_without_an_answer_is_not_taken_back_because_the_file_has_changed(
    server: StorageServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ChangedWhileUploadingError would mean that the object is still that of before."""
    bucket = open_bucket("gs://bucket", endpoint=server.url, retry_seconds=0.5)
    source = tmp_path / "source"
    source.write_bytes(b"promised")
    commit = server.store.commit

    def and_change(*args: Any, **options: Any) -> Version:
        version = commit(*args, **options)
        source.write_bytes(b"the next version")
        return version

    monkeypatch.setattr(server.store, "commit", and_change)
    server.fault(path="/upload/", action={"cut": "effect"})
    server.fault(path="/upload/", action={"status": 503}, times=1000)
    with pytest.raises(BucketUnreachableError):
        bucket.upload(source, "x", crc32c=crc32c_of_bytes(b"promised"))
    assert bucket.read("x") == b"promised"


def test_nothing_is_asked_that_an_object_user_may_not(server: StorageServer, bucket: Bucket, tmp_path: Path) -> None:
    """roles/storage.objectUser has no permission on the bucket itself."""
    bucket.write("x", b"1")
    bucket.read("x")
    bucket.stat("x")
    list(bucket.list(""))
    fetch(bucket, item_of("x", tmp_path / "x", b"1"))
    assert [path for _, path, _, _ in server.requests if "/o" not in path] == []


def test_a_pull_whose_network_is_gone_says_how_to_continue_and_then_does(server: StorageServer, tmp_path: Path) -> None:
    bucket = open_bucket("gs://bucket", endpoint=server.url, retry_seconds=0.5)
    directory = tmp_path / "node"
    directory.mkdir()
    for number in range(100):
        (directory / f"{number:03}").write_bytes(bytes([number]) * 1000)
    Uploader(bucket, cluster=CLUSTER, run=RUN, node=0, directory=directory, quiet_seconds=0).finish(
        time.monotonic() + 60
    )
    server.fault(path="alt=media", action={"cut": "response", "after": 100}, times=100_000, skip=60)
    verified_files = tmp_path / "ledger.json"
    with pytest.raises(PullError) as caught:
        pull(bucket, cluster=CLUSTER, run=RUN, target=tmp_path / "out", verified_files=VerifiedFiles(verified_files))
    assert caught.value.code == ExitCode.CHECKPOINT
    assert caught.value.hint == f"hvdcloud pull {RUN} continues where this one ended"
    arrived = caught.value.pulled.files
    assert 0 < arrived < 100
    server.faults.clear()
    again = pull(
        bucket, cluster=CLUSTER, run=RUN, target=tmp_path / "out", verified_files=VerifiedFiles(verified_files)
    )
    assert (again.files, again.fetched) == (100, 100 - arrived)
