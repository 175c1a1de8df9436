"""The fetcher of data sets: real processes, against the stand-in of Cloud Storage over HTTP."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import ssl
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import google_crc32c
import pytest

from hvdcloud.errors import ExitCode
from hvdcloud.node.data.plan import range_line
from hvdcloud.node.data.sets import FAILED, FETCHING, READY, DataSet
from hvdcloud.storage.checksum import combined_crc32c, crc32c_of_bytes, crc32c_text
from tests.standins.storage.server import StorageServer, running_server
from tests.support.data_node import PREFIX, DataNode, delete, downloads, plant, put
from tests.support.generated_listing import generated_listing
from tests.support.harness import until
from tests.support.http_server import Asked, Reply, answering

RANGE = 16 << 20


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


def held(server: StorageServer) -> threading.Event:
    """Has all downloads wait until this event is set."""
    opened = threading.Event()

    def boundary(token: str, action: str, bucket: str, name: str) -> int:
        if action == "get":
            opened.wait(120)
        return 200

    server.boundary = boundary
    return opened


def large(size: int) -> bytes:
    """Bytes of which no two ranges are the same."""
    block = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(1 << 15))
    return b"".join(bytes([i]) + block for i in range(size // len(block) + 1))[:size]


def test_a_set_is_there_whole_and_read_only(server: StorageServer, node: DataNode) -> None:
    # Two names that other disks than Linux's take for one.
    objects = {**small(), "empty": b"", "ünïcode & %2F?": b"x", "Cat.png": b"one", "cat.png": b"another"}
    put(server, objects)
    plant(server, ["folder/"], like="empty")
    state = node.fetch(train=PREFIX)
    assert state.phase == READY, state
    assert node.content() == objects
    assert (state.files, state.bytes) == (len(objects), sum(map(len, objects.values())))
    assert (state.total_files, state.total_bytes) == (state.files, state.bytes)
    modes = {path.stat().st_mode & 0o222 for path in (node.data / "train").rglob("*")}
    assert modes == {0}
    assert downloads(server)
    assert all("generation=" in path for path, _, _ in downloads(server)), "each request names the generation"


def test_a_second_fetch_asks_for_the_list_and_gets_what_changed_and_loses_what_is_gone(
    server: StorageServer, node: DataNode
) -> None:
    objects = small()
    put(server, objects)
    assert node.fetch(train=PREFIX).phase == READY
    before = (node.data / "train").stat().st_ino
    server.requests.clear()
    state = node.fetch(train=PREFIX)
    assert (state.phase, state.files) == (READY, 40)
    assert downloads(server) == []
    assert (node.data / "train").stat().st_ino == before
    changed = {"0/image-0000.png": b"other pixels", "new/one": b"new"}
    put(server, changed)
    delete(server, "1/image-0001.png")
    del objects["1/image-0001.png"]
    server.requests.clear()
    assert node.fetch(train=PREFIX).phase == READY
    assert node.content() == {**objects, **changed}
    assert len(downloads(server)) == 2


def test_a_killed_fetch_is_resumed_without_fetching_verified_bytes_again(server: StorageServer, node: DataNode) -> None:
    objects = {**small(60), "model.bin": large(5 * RANGE + 7)}
    put(server, objects)
    server.fault(method="GET", path="/download/", times=10_000, skip=30, action={"delay": 120.0})
    node.start(train=PREFIX)
    node.reaches(files=20)
    node.kill()
    [state] = node.states()
    assert state.phase == FAILED
    assert not (node.data / "train").exists()
    had = {
        path.name
        for path in (node.data / ".hvdcloud/train/tree").rglob("*")
        if path.is_file()
        and path.stat().st_mtime < time.time()
        and path.stat().st_mode & 0o777 == 0o444
        and path.read_bytes() == objects.get(str(path.relative_to(node.data / ".hvdcloud/train/tree")))
    }
    assert had
    server.faults.clear()
    asked = len(downloads(server))
    server.requests.clear()
    assert node.fetch(train=PREFIX).phase == READY
    assert node.content() == objects
    assert len(downloads(server)) <= 60 - len(had) + 6 < asked + 66
    again = {path.partition("?")[0].rpartition("%2F")[2] for path, _, _ in downloads(server)}
    # One that was marked in the very moment of the kill aside, nothing is asked for again.
    assert len(again & had) <= 1


def test_after_a_reboot_what_came_is_verified_again_and_what_the_disk_lost_is_fetched(
    server: StorageServer, node: DataNode
) -> None:
    objects = small(30)
    put(server, objects)
    server.fault(method="GET", path="/download/", times=10_000, skip=15, action={"delay": 120.0})
    node.start(train=PREFIX)
    node.reaches(files=15)
    node.kill()
    work = node.data / ".hvdcloud/train"
    had = {name for name in objects if (work / "tree" / name).exists()}
    assert len(had) == 15
    # Of a file whose bytes had not reached the disk, its length and time may have.
    lost = work / "tree" / min(had)
    status = lost.stat()
    lost.chmod(0o644)
    lost.write_bytes(bytes(status.st_size))
    lost.chmod(0o444)
    os.utime(lost, ns=(status.st_mtime_ns, status.st_mtime_ns))
    (work / "boot").write_text("another boot of this machine\n")
    server.faults.clear()
    server.requests.clear()
    assert node.fetch(train=PREFIX).phase == READY
    assert node.content() == objects
    again = sorted(
        unquote(path.partition("?")[0]).partition("/set/")[2] for path, status, _ in downloads(server) if status
    )
    assert again == sorted(objects.keys() - had | {min(had)})


def test_the_ranges_of_a_large_object_are_kept(server: StorageServer, node: DataNode) -> None:
    data = large(6 * RANGE)
    put(server, {"model.bin": data})
    server.fault(method="GET", path="/download/", times=10_000, skip=3, action={"delay": 120.0})
    node.start(train=PREFIX)
    node.reaches(size=3 * RANGE)
    node.kill()
    server.faults.clear()
    server.requests.clear()
    assert node.fetch(train=PREFIX).phase == READY
    assert node.content() == {"model.bin": data}
    assert len({span for _, _, span in downloads(server)}) == 3


@pytest.mark.parametrize("way", ["one request a connection", "chunked", "longer at first", "other bytes at first"])
def test_small_objects_are_fetched_whatever_way_they_are_answered(node: DataNode, way: str) -> None:
    """What one thread fetches over many connections it leaves to others where the answer is not as it expects."""
    content = {f"object-{number:02}": f"bytes of {number} ".encode() * 100 for number in range(60)}
    asked = Counter[str]()

    def answer(request: Asked) -> Reply:
        if request.path.endswith("/o"):
            return Reply({"items": [listed(f"set/{name}", data) for name, data in content.items()]})
        name = unquote(request.path).rpartition("/")[2]
        asked[name] += 1
        data = content[name]
        if way == "chunked":
            return Reply(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data), headers={"Transfer-Encoding": "chunked"})
        if way.endswith("at first") and asked[name] == 1:
            return Reply(data + b"more" if way.startswith("longer") else data.swapcase())
        return Reply(data)

    with answering(answer) as node.endpoint:
        state = node.fetch(train=PREFIX)
    assert (state.phase, state.files, state.bytes) == (READY, 60, sum(map(len, content.values()))), state
    assert node.content() == content
    if way == "one request a connection":
        assert asked == dict.fromkeys(content, 1)


def test_small_objects_come_once_over_encrypted_connections(
    node: DataNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes"]
    made += ["-keyout", str(key), "-out", str(certificate), *names]
    subprocess.run(made, check=True, capture_output=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    # Of several records of the protocol each, which has 16 KiB in one.
    objects = {f"object-{number:02}": large(1000 + 1900 * number) for number in range(60)}
    with running_server(tmp_path / "encrypted", tls=tls) as server:
        put(server, objects)
        node.endpoint = server.url
        assert node.fetch(train=PREFIX).phase == READY
        assert node.content() == objects
        # None was left to another way.
        assert len(downloads(server)) == len(objects)


def listed(name: str, data: bytes) -> dict[str, str]:
    """An object as the list has it."""
    return {"name": name, "size": str(len(data)), "crc32c": crc32c_of_bytes(data), "generation": "1"}


def test_an_object_of_50_gb_is_continued_where_it_was_cut(server: StorageServer, node: DataNode) -> None:
    size, missing = 50_000_000_000, {0, 1500 * RANGE, 2980 * RANGE}
    put(server, {"model.bin": b""})
    bucket = server.store.buckets["bucket"]
    sizes = {start: min(RANGE, size - start) for start in range(0, size, RANGE)}
    crc_of = {each: google_crc32c.value(bytes(each)) for each in set(sizes.values())}
    crc = 0
    for each in sizes.values():
        crc = combined_crc32c(crc, crc_of[each], second_size=each)
    live = dataclasses.replace(bucket.live["set/model.bin"], size=size, crc32c=crc32c_text(crc))
    bucket.live["set/model.bin"] = live
    # Holes in its place: nothing takes 50 GB here.
    os.truncate(bucket.folder / live.file, size)
    server.fault(method="GET", path="/download/", times=10_000, action={"delay": 120.0})
    node.start(train=PREFIX)
    # A disk with less space refuses it.
    node.reaches(FETCHING, FAILED)
    node.kill()
    work = node.data / ".hvdcloud/train"
    with (work / "tree/model.bin").open("ab") as file:
        file.truncate(size)
    with (work / "ranges").open("ab") as file:
        for start in sizes.keys() - missing:
            file.write(range_line("model.bin", live.generation, start, crc_of[sizes[start]]))
    server.faults.clear()
    server.requests.clear()
    state = node.fetch(train=PREFIX)
    assert (state.phase, state.bytes) == (READY, size), state
    # Those that the killed node had asked for end now, without an answer.
    assert {span for _, status, span in downloads(server) if status == 206} == {
        f"bytes={s}-{s + sizes[s] - 1}" for s in missing
    }
    assert (node.data / "train/model.bin").stat().st_size == size


def test_every_second_request_fails(server: StorageServer, node: DataNode) -> None:
    objects = {**small(20), "model.bin": large(3 * RANGE)}
    put(server, objects)
    server.requests.clear()
    # Of what a fault lets pass, the next one takes every second: one half is cut or refused, and again of the rest.
    server.fault(path="/o", every=2, times=10_000, action={"status": 503})
    server.fault(path="/download/", every=4, times=10_000, action={"cut": "response", "after": 100})
    assert node.fetch(train=PREFIX).phase == READY
    assert node.content() == objects
    # One that is cut is in there twice.
    statuses = [status for _, _, status, _ in list(server.requests)]
    assert statuses.count(503) == (len(statuses) - statuses.count(0)) // 2
    assert 0 in statuses


@pytest.mark.parametrize("size", [1000, 3 * RANGE])
def test_corrupted_bytes_never_become_a_set(server: StorageServer, node: DataNode, size: int) -> None:
    put(server, {"a/good": b"good", "bad": large(size)})
    damage = json.dumps({"bucket": "bucket", "name": "set/bad", "offset": 500}).encode()
    urllib.request.urlopen(urllib.request.Request(f"{server.url}/_corrupt", data=damage, method="POST")).close()
    state = node.fetch(train=PREFIX)
    assert (state.phase, state.exit_code) == (FAILED, ExitCode.CHECKPOINT)
    assert "bad" in (state.error or "")
    assert "CRC32C" in (state.error or "")
    assert not (node.data / "train").exists()


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_an_object_that_changes_meanwhile_is_named(server: StorageServer, node: DataNode, change: str) -> None:
    put(server, small(30))
    opened = held(server)
    node.start(train=PREFIX)
    node.reaches(FETCHING)
    if change == "replaced":
        put(server, {"4/image-0029.png": b"replaced"})
    else:
        delete(server, "4/image-0029.png")
    opened.set()
    [state] = node.ended()
    assert state.phase == FAILED
    assert "4/image-0029.png" in (state.error or "")
    assert "while" in (state.error or "")
    assert not (node.data / "train").exists()
    assert node.fetch(train=PREFIX).phase == READY


def test_no_right_a_missing_bucket_and_an_empty_prefix_stop_no_other_set(server: StorageServer, node: DataNode) -> None:
    put(server, small(3))
    node.start(empty="gs://bucket/nothing", missing="gs://no-such-bucket/x", train=PREFIX)
    empty, missing, train = node.ended()
    assert (empty.phase, empty.exit_code) == (FAILED, ExitCode.USAGE)
    assert "gs://bucket/nothing has no objects" in (empty.error or "")
    assert (missing.phase, missing.exit_code) == (FAILED, ExitCode.USAGE)
    assert missing.error == "the bucket gs://no-such-bucket does not exist"
    assert train.phase == READY, "one set that fails stops no other"
    server.boundary = lambda token, action, bucket, name: 403 if action == "get" else 200
    state = node.fetch(val=PREFIX)
    assert (state.phase, state.exit_code) == (FAILED, ExitCode.CREDENTIALS)
    assert "hvdcloud.tfvars" in (state.hint or "")


def test_hostile_names_write_nothing(server: StorageServer, node: DataNode) -> None:
    hostile = [("../out",), ("a/../../out",), ("a//b",), (".git/config",), ("a", "a/b")]
    put(server, {"plain": b"x"})
    for number, names in enumerate(hostile):
        plant(server, ["plain", *names], like="plain", folder=f"set-{number}")
    # A set each, in one fetch.
    node.start(**{f"train-{number}": f"gs://bucket/set-{number}" for number in range(len(hostile))})
    for names, state in zip(hostile, node.ended(), strict=True):
        assert state.phase == FAILED, state
        assert names[-1] in (state.error or "")
        assert not (node.data / state.name).exists()
    assert downloads(server) == []


def test_names_that_differ_in_case_are_refused_where_the_disk_ignores_it(server: StorageServer, node: DataNode) -> None:
    put(server, {"a/Cat.png": b"one", "a/cat.png": b"another", "dog.png": b"x"})
    # As if the file `.case.hvdcloud-part`, by which the fetcher finds out, were seen under this name as well.
    probe = node.data / ".hvdcloud/train/.CASE.HVDCLOUD-PART"
    probe.parent.mkdir(parents=True)
    probe.touch()
    state = node.fetch(train=PREFIX)
    assert (state.phase, state.exit_code) == (FAILED, ExitCode.USAGE)
    assert state.error == "a/Cat.png and a/cat.png differ in case only, which this disk ignores"
    assert downloads(server) == []
    delete(server, "a/Cat.png")
    assert node.fetch(train=PREFIX).phase == READY


def test_a_node_gets_its_share_by_name(server: StorageServer, node: DataNode, tmp_path: Path) -> None:
    objects = small(23)
    put(server, objects)
    share = DataSet(name="train", source=PREFIX, per_node="shard")
    every: dict[str, bytes] = {}
    for index in range(3):
        one = DataNode(tmp_path / f"node-{index}", server.url, index=index, count=3)
        assert one.fetch(train=share).phase == READY
        assert list(one.content()) == sorted(objects)[index::3]
        every |= one.content()
    assert every == objects
    server.requests.clear()
    # The world changes: what it has of its new share is not fetched again.
    one.index, one.count = 0, 2
    assert one.fetch(train=share).phase == READY
    assert list(one.content()) == sorted(objects)[0::2]
    assert len(downloads(server)) == len(set(sorted(objects)[0::2]) - set(sorted(objects)[2::3]))


def test_more_nodes_than_files(server: StorageServer, tmp_path: Path) -> None:
    put(server, small(2))
    one = DataNode(tmp_path / "node", server.url, index=2, count=3)
    state = one.fetch(train=DataSet(name="train", source=PREFIX, per_node="shard"))
    assert (state.phase, state.exit_code) == (FAILED, ExitCode.USAGE)


def test_two_starts_at_once_are_one_fetch(server: StorageServer, node: DataNode) -> None:
    put(server, small(20))
    opened = held(server)
    node.start(train=PREFIX)
    node.reaches(FETCHING)
    first = {each.pid for each in node.processes()}
    node.start(train=PREFIX)
    assert {each.pid for each in node.processes()} == first
    opened.set()
    [state] = node.ended()
    assert state.phase == READY
    assert len(downloads(server)) == 20


def test_another_request_ends_the_old_one(server: StorageServer, node: DataNode) -> None:
    put(server, small(20))
    server.fault(method="GET", path="/download/", times=16, action={"delay": 60})
    node.start(train=PREFIX)
    node.reaches(FETCHING)
    server.faults.clear()
    state = node.fetch(val=PREFIX)
    assert (state.name, state.phase) == ("val", READY)
    assert not (node.data / "train").exists()


def test_a_token_of_the_vm_that_ends_in_the_middle_is_followed_by_the_next(
    server: StorageServer, node: DataNode
) -> None:
    put(server, small(40))
    valid, changed, asked = ["one"], threading.Event(), itertools.count()
    pages = 6

    def authorize(token: str) -> bool:
        # Some files come; the requests for the others wait until their token is no longer valid.
        if next(asked) >= pages + 10:
            changed.wait(120)
        return token in valid

    server.authorize = authorize
    with answering(lambda _: Reply({"access_token": valid[0], "expires_in": 3600})) as metadata:
        node.metadata = metadata.removeprefix("http://")
        node.start(train=PREFIX)
        node.reaches(files=1)
        valid[0] = "two"
        changed.set()
        [state] = node.ended()
    assert state.phase == READY, state
    assert server.tokens["two"] >= 30


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_is_too_small_or_fills(server: StorageServer, node: DataNode) -> None:
    put(server, {"a": large(3 << 20), "b": large(3 << 20), "c": b"c"})
    node.data.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", node.data], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine mounts nothing")
    try:
        state = node.fetch(train=PREFIX)
        assert (state.phase, state.exit_code) == (FAILED, ExitCode.CAPACITY)
        assert "gce.disk_gb" in (state.hint or "")
        assert "gce.local_ssd" in (state.hint or "")
        assert downloads(server) == []
        subprocess.run(["mount", "-o", "remount,size=8m", node.data], check=True)
        opened = held(server)
        node.start(train=PREFIX)
        node.reaches(FETCHING)
        (node.data / "filler").write_bytes(bytes(5 << 20))
        opened.set()
        [state] = node.ended()
        assert (state.phase, state.exit_code) == (FAILED, ExitCode.CAPACITY), state
        assert "full" in (state.error or "")
        (node.data / "filler").unlink()
        assert node.fetch(train=PREFIX).phase == READY
    finally:
        subprocess.run(["umount", "--lazy", node.data], check=True)


def test_a_folder_as_source(node: DataNode, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    (source / "a/x").write_bytes(b"x" * 100)
    (source / "big").write_bytes(large(3 * RANGE))
    (source / "link").symlink_to("/etc/passwd")
    assert node.fetch(train=source.as_uri()).phase == READY
    assert node.content() == {"a/x": b"x" * 100, "big": large(3 * RANGE)}
    (source / "a/x").write_bytes(b"y")
    assert node.fetch(train=source.as_uri()).phase == READY
    assert node.content()["a/x"] == b"y"


def test_a_mounted_set_is_not_fetched(node: DataNode) -> None:
    mounted = DataSet(name="val", source="file:///somewhere", mounted=True)
    assert node.fetch(val=mounted).phase == FAILED
    (node.data / "val").mkdir()
    assert node.fetch(val=mounted).phase == READY


def test_any_number_of_objects_is_listed_in_pages_with_flat_memory(tmp_path: Path) -> None:
    # 40 MB: that of so many names alone would be 23 more. A million takes no more.
    with generated_listing(200_000) as bucket:
        node = DataNode(tmp_path / "node", bucket.url)
        node.start(train=PREFIX)
        most, look_at = 0, 0.0

        def ended() -> bool:
            nonlocal most, look_at
            # To read it takes time from what is looked at.
            if time.monotonic() >= look_at:
                most, look_at = max(most, node.memory()), time.monotonic() + 0.5
            return not node.at_work()

        until(ended, seconds=300, what="the refusal")
        [state] = node.states()
    assert (state.total_files, state.exit_code) == (200_000, ExitCode.CREDENTIALS), state
    assert bucket.pages == 200
    assert 0 < most < 55 << 20


def test_bad_requests_are_refused(node: DataNode) -> None:
    for data in (None, {}, {"sets": [{"name": "../x", "source": "gs://b"}]}, {"sets": [], "index": 1, "count": 1}):
        assert "error" in node.verb("data", message={"data": data})
    assert json.dumps(node.verb("data-state")) == '{"states": []}'
