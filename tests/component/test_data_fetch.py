"""The fetcher of data sets: real processes, against the stand-in of Cloud Storage over HTTP."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from hvdcloud.errors import ExitCode
from hvdcloud.runs.spec import DataSet
from tests.standins.storage.server import StorageServer, running_server
from tests.support.data_node import PREFIX, DataNode, delete, downloads, plant, put
from tests.support.harness import DEADLINE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StorageServer]:
    with running_server(tmp_path / "storage", page_size=7) as found:
        yield found


@pytest.fixture
def node(tmp_path: Path, server: StorageServer) -> Iterator[DataNode]:
    found = DataNode(tmp_path / "node", server.url)
    yield found
    if found.processes():
        found.kill()


def small(count: int = 40) -> dict[str, bytes]:
    return {f"{i % 5}/image-{i:04}.png": f"pixels of {i} ".encode() * (i + 1) for i in range(count)}


def held(server: StorageServer) -> tuple[threading.Event, threading.Event]:
    """Has all downloads wait until the second event is set; the first one says that one waits."""
    asked, opened = threading.Event(), threading.Event()

    def boundary(token: str, action: str, bucket: str, name: str) -> int:
        if action == "get":
            asked.set()
            opened.wait(DEADLINE)
        return 200

    server.boundary = boundary
    return asked, opened


def large(size: int) -> bytes:
    """Bytes of which no two ranges are the same."""
    block = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(1 << 15))
    return b"".join(bytes([i]) + block for i in range(size // len(block) + 1))[:size]


def test_a_set_is_there_whole(server: StorageServer, node: DataNode) -> None:
    # Two names that other disks than Linux's take for one.
    objects = {**small(), "empty": b"", "ünïcode & %2F?": b"x", "Cat.png": b"one", "cat.png": b"another"}
    put(server, objects)
    plant(server, ["folder/"], like="empty")
    state = node.fetch(train=PREFIX)
    assert state.phase == "ready", state
    assert node.content() == objects
    assert (state.files, state.bytes) == (len(objects), sum(map(len, objects.values())))
    assert state.total_bytes == state.bytes
    assert downloads(server)
    assert all("generation=" in path for path, _, _ in downloads(server)), "each request names the generation"


def test_a_second_fetch_asks_for_the_list_and_gets_what_changed_and_loses_what_is_gone(
    server: StorageServer, node: DataNode
) -> None:
    objects = small()
    put(server, objects)
    assert node.fetch(train=PREFIX).phase == "ready"
    before = (node.data / "train").stat().st_ino
    server.requests.clear()
    state = node.fetch(train=PREFIX)
    assert (state.phase, state.files) == ("ready", 40)
    assert downloads(server) == []
    assert (node.data / "train").stat().st_ino == before
    changed = {"0/image-0000.png": b"other pixels", "new/one": b"new"}
    put(server, changed)
    delete(server, "1/image-0001.png")
    del objects["1/image-0001.png"]
    server.requests.clear()
    assert node.fetch(train=PREFIX).phase == "ready"
    assert node.content() == {**objects, **changed}
    assert len(downloads(server)) == 2


def fetched(server: StorageServer) -> list[str]:
    """Names of the objects that were asked for, with `set/`."""
    return [unquote(path.partition("?")[0]).partition("/o/")[2] for path, _, _ in downloads(server)]


def killed_in_the_middle(server: StorageServer, node: DataNode, objects: dict[str, bytes]) -> set[str]:
    """What the tree of a fetch has that was killed; the server serves again."""
    put(server, objects)
    server.fault(method="GET", path="/download/", times=10_000, skip=30, action={"delay": 120.0})
    node.start(train=PREFIX)
    node.reaches("fetching", files=20)
    node.kill()
    assert node.state().phase == "fetching"
    assert not (node.data / "train").exists()
    server.faults.clear()
    server.requests.clear()
    tree = node.data / ".hvdcloud/train/tree"
    return {str(p.relative_to(tree)) for p in tree.rglob("*") if p.is_file() and not p.name.startswith(".")}


def test_a_killed_fetch_resumes_without_fetching_verified_objects_again(server: StorageServer, node: DataNode) -> None:
    objects = {**small(60), "model.bin": large(80 << 20)}
    had = killed_in_the_middle(server, node, objects)
    assert len(had) >= 20
    assert node.fetch(train=PREFIX).phase == "ready"
    assert node.content() == objects
    assert {name.removeprefix("set/") for name in fetched(server)} == objects.keys() - had
    assert not list(node.data.rglob(".*part"))


def test_what_the_disk_lost_of_a_killed_fetch_is_fetched_again(server: StorageServer, node: DataNode) -> None:
    objects = small(60)
    had = killed_in_the_middle(server, node, objects)
    # As after a power failure: the length is right.
    lost = node.data / ".hvdcloud/train/tree" / min(had)
    lost.write_bytes(bytes(len(objects[min(had)])))
    assert node.fetch(train=PREFIX).phase == "ready"
    assert node.content() == objects
    assert {name.removeprefix("set/") for name in fetched(server)} == objects.keys() - had | {min(had)}


@pytest.mark.parametrize("size", [1000, 80 << 20])
def test_corrupted_bytes_never_become_a_set(server: StorageServer, node: DataNode, size: int) -> None:
    put(server, {"a/good": b"good", "bad": large(size)})
    server.store.corrupt("bucket", "set/bad", offset=500)
    state = node.fetch(train=PREFIX)
    assert (state.phase, state.exit_code) == ("failed", ExitCode.CHECKPOINT)
    assert "bad" in state.error
    assert re.search("CRC32C|checksum", state.error)
    assert not (node.data / "train").exists()


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_an_object_that_changes_meanwhile_is_named(server: StorageServer, node: DataNode, change: str) -> None:
    put(server, small(30))
    asked, opened = held(server)
    node.start(train=PREFIX)
    assert asked.wait(DEADLINE)
    if change == "replaced":
        put(server, {"4/image-0029.png": b"replaced"})
    else:
        delete(server, "4/image-0029.png")
    opened.set()
    state = node.ended()
    assert state.phase == "failed"
    assert "4/image-0029.png" in state.error
    assert "while" in state.error
    assert not (node.data / "train").exists()
    assert node.fetch(train=PREFIX).phase == "ready"


def test_no_right_a_missing_bucket_and_an_empty_prefix_are_told(server: StorageServer, node: DataNode) -> None:
    put(server, small(3))
    empty = node.fetch(train=PREFIX, empty="gs://bucket/nothing")
    assert (empty.phase, empty.exit_code) == ("failed", ExitCode.USAGE)
    assert empty.error == "data set empty: gs://bucket/nothing has no objects"
    missing = node.fetch(train=PREFIX, missing="gs://no-such-bucket/x")
    assert (missing.phase, missing.exit_code) == ("failed", ExitCode.USAGE)
    assert missing.error == "data set missing: the bucket gs://no-such-bucket does not exist"
    assert downloads(server) == []
    server.boundary = lambda token, action, bucket, name: 403 if action == "get" else 200
    state = node.fetch(val=PREFIX)
    assert (state.phase, state.exit_code) == ("failed", ExitCode.CREDENTIALS)
    assert "hvdcloud.tfvars" in state.hint


def test_hostile_names_write_nothing(server: StorageServer, node: DataNode) -> None:
    hostile = [("../out",), ("a/../../out",), ("a//b",), (".git/config",), ("a", "a/b")]
    put(server, {"plain": b"x"})
    for number, names in enumerate(hostile):
        plant(server, ["plain", *names], like="plain", folder=f"set-{number}")
    for number, names in enumerate(hostile):
        state = node.fetch(train=f"gs://bucket/set-{number}")
        assert state.phase == "failed", state
        assert names[-1] in state.error
        assert not (node.data / "train").exists()
    assert downloads(server) == []


def test_a_node_gets_its_share_by_name(server: StorageServer, node: DataNode, tmp_path: Path) -> None:
    objects = small(23)
    put(server, objects)
    share = DataSet(name="train", source=PREFIX, per_node="shard")
    every: dict[str, bytes] = {}
    for index in range(3):
        one = DataNode(tmp_path / f"node-{index}", server.url, index=index, count=3)
        assert one.fetch(train=share).phase == "ready"
        assert list(one.content()) == sorted(objects)[index::3]
        every |= one.content()
    assert every == objects
    server.requests.clear()
    # The world changes: what it has of its new share is not fetched again.
    one.index, one.count = 0, 2
    assert one.fetch(train=share).phase == "ready"
    assert list(one.content()) == sorted(objects)[0::2]
    assert len(downloads(server)) == len(set(sorted(objects)[0::2]) - set(sorted(objects)[2::3]))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_is_too_small_or_fills(server: StorageServer, node: DataNode) -> None:
    put(server, {"a": large(3 << 20), "b": large(3 << 20), "c": b"c"})
    node.data.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", node.data], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine mounts nothing")
    try:
        state = node.fetch(train=PREFIX)
        assert (state.phase, state.exit_code) == ("failed", ExitCode.CAPACITY)
        assert "gce.disk_gb" in state.hint
        assert downloads(server) == []
        subprocess.run(["mount", "-o", "remount,size=8m", node.data], check=True)
        asked, opened = held(server)
        node.start(train=PREFIX)
        assert asked.wait(DEADLINE)
        (node.data / "filler").write_bytes(bytes(5 << 20))
        opened.set()
        state = node.ended()
        assert (state.phase, state.exit_code) == ("failed", ExitCode.CAPACITY), state
        assert "space" in state.error
        (node.data / "filler").unlink()
        assert node.fetch(train=PREFIX).phase == "ready"
    finally:
        subprocess.run(["umount", "--lazy", node.data], check=True)
