"""What every bucket promises, asked of a folder, of an emulator written by others, and of our strict stand-in.

The emulator's known gaps are strict xfails: the day it closes one, the mark has to go.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import (
    MOST_READ,
    Bucket,
    ChangedWhileUploadingError,
    CorruptObjectError,
    Download,
    ObjectMissingError,
    PreconditionError,
    TooLargeError,
)
from hvdcloud.storage.checksum import crc32c_of_bytes
from hvdcloud.storage.open import open_bucket
from tests.standins.registry import free_port
from tests.standins.storage import running_server

# An error in a thread of a test is the test's.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

BACKENDS = ("folder", "folder-of-another-user", "strict", "strict-with-prefix", "emulator")


@pytest.fixture(params=BACKENDS)
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    kind: str = request.param
    if kind.startswith("folder"):
        root = tmp_path / "a bucket"
        root.mkdir()
        if kind != "folder" and os.geteuid() == 0:
            os.chown(root, 4242, 4243)
        yield open_bucket(root.as_uri())
    elif kind.startswith("strict"):
        # Two items a page: every listing longer than that is paged.
        with running_server(tmp_path / "server", page_size=2) as server:
            url = "gs://bucket/some/prefix" if kind == "strict-with-prefix" else "gs://bucket"
            yield open_bucket(url, endpoint=server.url, retry_seconds=5)
    else:
        yield open_bucket("gs://bucket", endpoint=request.getfixturevalue("emulator"), retry_seconds=5)


@pytest.fixture(scope="module")
def emulator_server() -> Iterator[tuple[str, Any]]:
    from gcp_storage_emulator.server import create_server

    port = free_port()
    server = create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    yield f"http://127.0.0.1:{port}", server
    server.stop()


@pytest.fixture
def emulator(emulator_server: tuple[str, Any]) -> str:
    """An empty one; stopping it for every test would take half a second each."""
    url, server = emulator_server
    server.wipe(keep_buckets=True)
    return url


def gap(request: pytest.FixtureRequest, backend: str, reason: str) -> None:
    """This backend is known to break this promise."""
    if request.node.callspec.params["bucket"].startswith(backend):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))


def fetch(bucket: Bucket, *items: Download) -> dict[str, Exception | None]:
    results: dict[str, Exception | None] = {}

    def done(item: Download, error: Exception | None) -> None:
        assert item.name not in results, "on_done came twice"
        results[item.name] = error

    bucket.download_many(items, workers=4, on_done=done)
    assert set(results) == {item.name for item in items}
    return results


def wanted(name: str, target: Path, data: bytes, *, generation: int | None = None) -> Download:
    return Download(name=name, target=target, size=len(data), crc32c=crc32c_of_bytes(data), generation=generation)


NASTY = bytes(range(256)) * 3 + b"\r\n--boundary--\r\n\r\n"


@pytest.mark.parametrize("data", [b"", b"x", NASTY, os.urandom(3_000_001)], ids=["empty", "tiny", "nasty", "3MB"])
def test_what_is_uploaded_comes_back_byte_for_byte(bucket: Bucket, tmp_path: Path, data: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(data)
    info = bucket.upload(source, "a/b.pt")
    assert (info.name, info.size, info.crc32c) == ("a/b.pt", len(data), crc32c_of_bytes(data))
    assert info.generation > 0
    assert bucket.read("a/b.pt") == data
    assert bucket.read("a/b.pt", generation=info.generation) == data
    stat = bucket.stat("a/b.pt")
    assert stat is not None
    assert (stat.name, stat.size, stat.crc32c, stat.generation) == (info.name, info.size, info.crc32c, info.generation)
    target = tmp_path / "new folder" / "b.pt"
    assert fetch(bucket, wanted("a/b.pt", target, data, generation=info.generation)) == {"a/b.pt": None}
    assert target.read_bytes() == data
    assert [path.name for path in target.parent.iterdir()] == ["b.pt"]


def test_large_objects_go_up_in_chunks_and_come_down_in_slices(bucket: Bucket, tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        for _ in range(70):
            file.write(block)
        file.write(b"end")
    info = bucket.upload(source, "large")
    item = Download(name="large", target=target, size=info.size, crc32c=info.crc32c, generation=info.generation)
    assert fetch(bucket, item) == {"large": None}
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize(
    "name", ["with space", "ünïcödé/日本語.pt", "a%2Fb", "a?b#c&d=e", "+plus+", "@node-1/x", ".hidden"]
)
def test_names_come_back_as_they_were_given(bucket: Bucket, tmp_path: Path, name: str) -> None:
    bucket.write(name, b"data")
    assert [info.name for info in bucket.list("")] == [name]
    assert bucket.read(name) == b"data"
    target = tmp_path / "target"
    assert fetch(bucket, wanted(name, target, b"data")) == {name: None}


@pytest.mark.parametrize(
    "name", ["/etc/x", "../x", "a/../../x", "a//b", ".", "a/.", "x/", "line\nbreak", "nul\0", "\udcff"]
)
def test_names_that_lead_elsewhere_are_refused(bucket: Bucket, name: str) -> None:
    with pytest.raises(CheckpointError):
        bucket.write(name, b"data")
    with pytest.raises(CheckpointError):
        bucket.read(name)
    assert list(bucket.list("")) == []


def test_no_reader_takes_more_of_an_object_than_it_says(bucket: Bucket) -> None:
    bucket.write("x", b"x" * 1000)
    assert bucket.read("x", most=1000) == b"x" * 1000
    with pytest.raises(TooLargeError, match="has more than the 999 bytes that are read of it") as raised:
        bucket.read("x", most=999)
    assert f"{bucket.url}/x" in raised.value.message
    assert raised.value.hint == "look at who wrote it, and delete it"
    bucket.write("x", b"x" * (MOST_READ + 1))
    with pytest.raises(TooLargeError):
        bucket.read("x")


def test_a_missing_object_is_missing_and_not_empty(bucket: Bucket, tmp_path: Path) -> None:
    assert bucket.stat("nothing") is None
    with pytest.raises(ObjectMissingError):
        bucket.read("nothing")
    results = fetch(bucket, wanted("nothing", tmp_path / "target", b""))
    assert isinstance(results["nothing"], ObjectMissingError)
    assert not (tmp_path / "target").exists()


def test_listing_is_sorted_complete_and_by_prefix(bucket: Bucket) -> None:
    names = ["a", "b-c/1", "b/1", "b/2/deep", "b/2/deeper", "b/2x", "b/3", "b0", "c/1"]
    for name in reversed(names):
        bucket.write(name, name.encode())
    listed = list(bucket.list(""))
    assert [info.name for info in listed] == names
    assert [info.size for info in listed] == [len(name) for name in names]
    for info in listed:
        assert info.crc32c in ("", crc32c_of_bytes(info.name.encode()))
        stat = bucket.stat(info.name)
        assert stat is not None
        assert stat.generation == info.generation
    assert [info.name for info in bucket.list("b/")] == ["b/1", "b/2/deep", "b/2/deeper", "b/2x", "b/3"]
    assert [info.name for info in bucket.list("b/2")] == ["b/2/deep", "b/2/deeper", "b/2x"]
    assert [info.name for info in bucket.list("b/2/")] == ["b/2/deep", "b/2/deeper"]
    assert list(bucket.list("nothing/")) == []


def test_prefixes_are_the_folders_directly_below(bucket: Bucket) -> None:
    for name in ("top", "x/1", "x/y/1", "x/z/1", "x/z/2", "w/1", "v/1"):
        bucket.write(name, b"")
    assert bucket.prefixes("") == ["v/", "w/", "x/"]
    assert bucket.prefixes("x/") == ["x/y/", "x/z/"]
    assert bucket.prefixes("none/") == []


def test_generations_grow_on_every_overwrite(bucket: Bucket) -> None:
    generations = [bucket.write("x", b"same").generation for _ in range(20)]
    assert generations == sorted(set(generations))


def test_an_old_generation_is_gone_and_not_the_new_one(
    bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    gap(request, "emulator", "serves the live object for any ?generation=")
    old = bucket.write("x", b"old").generation
    new = bucket.write("x", b"new").generation
    assert bucket.read("x", generation=new) == b"new"
    with pytest.raises(ObjectMissingError):
        bucket.read("x", generation=old)
    results = fetch(bucket, wanted("x", tmp_path / "target", b"old", generation=old))
    assert isinstance(results["x"], ObjectMissingError)


def test_create_once_refuses_what_exists(bucket: Bucket, request: pytest.FixtureRequest) -> None:
    gap(request, "emulator", "ignores ifGenerationMatch")
    first = bucket.write("x", b"first", if_generation=0)
    with pytest.raises(PreconditionError):
        bucket.write("x", b"second", if_generation=0)
    assert bucket.read("x") == b"first"
    stat = bucket.stat("x")
    assert stat is not None
    assert stat.generation == first.generation


def test_compare_and_swap_refuses_a_stale_generation(
    bucket: Bucket, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    gap(request, "emulator", "ignores ifGenerationMatch")
    source = tmp_path / "source"
    source.write_bytes(b"from a file")
    first = bucket.write("x", b"first")
    second = bucket.write("x", b"second", if_generation=first.generation)
    with pytest.raises(PreconditionError):
        bucket.write("x", b"third", if_generation=first.generation)
    with pytest.raises(PreconditionError):
        bucket.upload(source, "x", if_generation=first.generation)
    with pytest.raises(PreconditionError):
        bucket.write("absent", b"", if_generation=second.generation)
    assert bucket.read("x") == b"second"


@pytest.mark.parametrize("same_bytes", [False, True], ids=["different bytes", "the same bytes"])
def test_of_eight_that_race_to_create_exactly_one_wins(
    bucket: Bucket, request: pytest.FixtureRequest, same_bytes: bool
) -> None:
    gap(request, "emulator", "ignores ifGenerationMatch: all eight win")
    start = threading.Barrier(8)

    def create(name: str, data: bytes) -> bytes | None:
        """The data, where they became the object."""
        start.wait(timeout=300)
        try:
            bucket.write(name, data, if_generation=0)
        except PreconditionError:
            return None
        return data

    with ThreadPoolExecutor(8) as threads:
        for attempt in range(5):
            name = f"lock-{attempt}"
            sent = [b"owner" if same_bytes else f"owner {number}".encode() for number in range(8)]
            won = [data for data in threads.map(create, [name] * 8, sent) if data is not None]
            assert won == [bucket.read(name)]


@pytest.mark.parametrize("size", [100, 9 << 20], ids=["in one request", "resumable"])
def test_bytes_other_than_promised_never_replace_a_good_object(bucket: Bucket, tmp_path: Path, size: int) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"g" * size)
    good = bucket.upload(source, "x")
    source.write_bytes(b"t" * size)
    with pytest.raises(ChangedWhileUploadingError):
        bucket.upload(source, "x", crc32c=crc32c_of_bytes(b"g" * size))
    assert bucket.read("x") == b"g" * size
    stat = bucket.stat("x")
    assert stat is not None
    assert stat.generation == good.generation


def test_a_file_that_is_gone_is_reported_as_changed(bucket: Bucket, tmp_path: Path) -> None:
    for crc32c in (None, crc32c_of_bytes(b"")):
        with pytest.raises(ChangedWhileUploadingError):
            bucket.upload(tmp_path / "nothing", "x", crc32c=crc32c)
    assert bucket.stat("x") is None


def test_a_download_with_other_bytes_leaves_the_old_target(bucket: Bucket, tmp_path: Path) -> None:
    target = tmp_path / "folder" / "target"
    target.parent.mkdir()
    target.write_bytes(b"what was here before")
    bucket.write("x", b"other")
    bucket.write("y", b"right")
    results = fetch(bucket, wanted("x", target, b"promised"), wanted("y", tmp_path / "folder" / "y", b"right"))
    assert isinstance(results["x"], CorruptObjectError)
    assert results["y"] is None
    assert target.read_bytes() == b"what was here before"
    assert sorted(path.name for path in target.parent.iterdir()) == ["target", "y"]


def test_a_name_that_this_disk_does_not_take_costs_its_own_file(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("x", b"data")
    folder = tmp_path / "/".join(["f" * 200] * 19)
    folder = folder / ("f" * (4080 - len(str(folder))))
    targets = [tmp_path / ("n" * 300), folder / "short", tmp_path / "good"]
    items = [wanted("x", target, b"data") for target in targets]
    results: dict[Path, Exception | None] = {}
    bucket.download_many(items, workers=4, on_done=lambda item, error: results.update({item.target: error}))
    assert results[targets[2]] is None
    assert targets[2].read_bytes() == b"data"
    for target in targets[:2]:
        assert isinstance(results[target], CheckpointError)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith("-part")]


def test_the_modification_time_of_the_node_is_kept(bucket: Bucket, tmp_path: Path) -> None:
    bucket.write("x", b"data")
    target = tmp_path / "target"
    item = Download(name="x", target=target, size=4, crc32c=crc32c_of_bytes(b"data"), modified=1_600_000_000.25)
    assert fetch(bucket, item) == {"x": None}
    assert target.stat().st_mtime == 1_600_000_000.25


def test_an_object_and_a_folder_of_one_name_can_both_exist(bucket: Bucket, request: pytest.FixtureRequest) -> None:
    gap(request, "folder", "a file and a folder of one name can't both exist on a disk")
    bucket.write("ckpt", b"1")
    bucket.write("ckpt/2", b"2")
    assert [info.name for info in bucket.list("")] == ["ckpt", "ckpt/2"]


def test_many_readers_never_see_a_half_written_object(bucket: Bucket) -> None:
    bucket.write("x", b"0" * 100_000)
    stop = threading.Event()
    torn: list[bytes] = []

    def look() -> None:
        while not stop.is_set():
            data = bucket.read("x")
            if data != data[:1] * 100_000:
                torn.append(data)

    threads: list[threading.Thread] = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(10):
        bucket.write("x", str(number).encode() * 100_000)
    stop.set()
    for thread in threads:
        thread.join(timeout=300)
    assert torn == []
