"""Checkpoints of nodes that have a bucket each are copied to the laptop over SSH, and to nodes that need them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import paramiko
import pytest

from hvdcloud.checkpoints.manifest import (
    Manifest,
    log_name,
    manifest_name,
    read_manifest,
    run_prefix,
    state_name,
    to_json,
)
from hvdcloud.checkpoints.pull import pull
from hvdcloud.checkpoints.verified_files import VerifiedFiles
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import CheckpointError, NodeError
from hvdcloud.node.uploads.restore import restore
from hvdcloud.remote.mirror import Mirror
from hvdcloud.remote.ssh import Session
from hvdcloud.storage.base import CorruptObjectError, ObjectInfo
from hvdcloud.storage.checksum import crc32c_of_bytes
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.folder_tree import TEMPORARY
from tests.support.harness import DEADLINE
from tests.support.manifests import entry_of
from tests.support.node_buckets import BucketNode
from tests.support.vanishing import RUN, Laptop

PREFIX = run_prefix("digits", RUN)


class Home:
    """A laptop, and the bucket to which checkpoints come."""

    def __init__(self, laptop: Laptop, nodes: list[BucketNode]) -> None:
        context, self.cluster, _ = laptop.context([node.vm for node in nodes])
        self.state: ClusterState = context.state
        self.bucket = FolderBucket(laptop.folder / "bucket")
        self.folder = laptop.folder

    def mirror(self) -> Mirror:
        return Mirror(self.bucket, cluster="digits", cluster_id="abcdef")

    def session(self, index: int) -> Session:
        return Session(self.cluster.nodes[index], self.state)

    def bring(self, index: int = 0, **options: Any) -> int:
        with contextlib.closing(self.session(index)) as session:
            return self.mirror().bring(session, **options)

    def send(self, index: int, run: str = RUN) -> int:
        with contextlib.closing(self.session(index)) as session:
            return self.mirror().send(session, run)

    def pulled(self, run: str = RUN) -> dict[str, bytes]:
        """What `pull` then brings to the project's folder."""
        target = self.folder / "pulled"
        verified = VerifiedFiles(self.folder / "verified.json")
        pull(self.bucket, cluster="digits", run=run, target=target, verified_files=verified)
        files = (path for path in (target / run).rglob("*") if path.is_file() and path.name != ".gitignore")
        return {str(path.relative_to(target / run)): path.read_bytes() for path in files}

    def outside(self) -> set[str]:
        """What is in the laptop's folder beside the bucket and the state."""
        return {path.name for path in self.folder.iterdir()} - {"bucket", "pulled", "verified.json"}


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "laptop").mkdir()
    return Laptop(tmp_path / "laptop")


Scene = tuple[Home, list[BucketNode]]


@pytest.fixture
def home(laptop: Laptop, tmp_path: Path) -> Iterator[Scene]:
    nodes = [BucketNode(tmp_path / f"node-{index}", index) for index in range(2)]
    yield Home(laptop, nodes), nodes
    for node in nodes:
        node.vm.close()


def test_everything_is_copied_as_it_is_and_pull_finds_it_there(home: Scene) -> None:
    here, (head, other) = home
    head.write({"epoch-1.pt": b"one" * 1000, "sub/é.pt": b"two", "empty": b""})
    other.write({"epoch-1.pt": b"of node 1"})
    head.bucket.write(log_name("digits", RUN), b"[0] epoch 1\n")
    head.bucket.write(state_name("digits", RUN), b'{"run": "x"}')
    assert here.bring(0) == 3
    assert here.bring(1) == 1
    assert here.pulled() == {
        "epoch-1.pt": b"one" * 1000,
        "sub/é.pt": b"two",
        "empty": b"",
        "@node-1/epoch-1.pt": b"of node 1",
    }
    for name in (log_name("digits", RUN), state_name("digits", RUN), manifest_name("digits", RUN, 1)):
        there = (other if name.endswith("-1.json") else head).bucket
        assert (here.bucket.read(name), here.bucket.present(name)) == (there.read(name), there.present(name))


def test_nodes_are_reached_while_more_files_are_open_than_select_knows(home: Scene) -> None:
    """As with hundreds of nodes."""
    here, (node, *_) = home
    node.write({"epoch-1.pt": b"one"})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        assert here.bring() == 1


@pytest.mark.parametrize(
    "cut", [10, *(pytest.param(cut, marks=pytest.mark.nightly) for cut in (400, 3_000, 60_000)), 20_000, 119_000]
)
def test_a_connection_that_breaks_anywhere_leaves_a_bucket_that_verifies(home: Scene, cut: int) -> None:
    here, (head, _) = home
    files = {f"part-{number}": random.Random(number).randbytes(20_000) for number in range(5)}
    head.write({"last.pt": b"v1"}, complete=False)
    here.bring()
    head.write({**files, "last.pt": b"v2" * 10_000})
    head.cut_after = cut
    with pytest.raises(NodeError):
        here.bring()
    partly = here.pulled()
    assert partly["last.pt"] in (b"v1", b"v2" * 10_000)
    assert all(files[name] == data for name, data in partly.items() if name != "last.pt")
    here.bring()
    assert here.pulled() == {**files, "last.pt": b"v2" * 10_000}


def test_what_is_cut_off_leaves_nothing_that_looks_like_a_checkpoint(home: Scene) -> None:
    here, (head, _) = home
    data = random.Random(3).randbytes(3_000_000)
    head.write({"large.pt": data})
    head.cut_after = 1_500_000
    with pytest.raises(NodeError):
        here.bring()
    listed = [info.name for info in here.bucket.list("")]
    assert PREFIX + "large.pt" not in listed
    assert [path for path in (here.bucket.root / TEMPORARY).rglob("*") if path.is_file()] == []


def forge(node: BucketNode, files: dict[str, bytes], *, owner: int | None = None, **changes: Any) -> None:
    """A manifest by hand, for objects by their names below `CLUSTER/RUN/`."""
    entries = []
    for name, data in files.items():
        generation = 5
        # The manifest also names what no bucket holds.
        with contextlib.suppress(CheckpointError):
            generation = node.bucket.write(PREFIX + name, data).generation
        entries.append(entry_of(name, data, **{"generation": generation, **changes}))
    number = node.index if owner is None else owner
    manifest = Manifest(cluster="digits", run=RUN, node=number, complete=True, files=entries)
    node.bucket.write(manifest_name("digits", RUN, node.index), to_json(manifest))


@pytest.mark.parametrize(
    "name",
    ["../../outside", "/etc/outside", "a/../../outside", ".hvdcloud/manifest-0.json", "@node-0/x", "x", "@node-1/../x"],
)
def test_a_node_names_only_its_own_files(home: Scene, name: str) -> None:
    here, (head, other) = home
    head.write({"x": b"of the head"})
    here.bring(0)
    before = here.bucket.read(manifest_name("digits", RUN, 0))
    forge(other, {name: b"evil"})
    with pytest.raises(CheckpointError):
        here.bring(1)
    assert here.pulled() == {"x": b"of the head"}
    assert here.bucket.read(manifest_name("digits", RUN, 0)) == before
    assert here.outside() == set()


def test_a_manifest_that_is_not_valid_does_not_replace_the_one_that_is_here(home: Scene) -> None:
    here, (head, _) = home
    head.write({"a": b"a"}, complete=False)
    here.bring()
    head.bucket.write(manifest_name("digits", RUN, 0), b'{"version": 1, "files": [' + b"[" * 50_000)
    with pytest.raises(CheckpointError, match="not valid"):
        here.bring()
    assert here.pulled() == {"a": b"a"}


def test_bytes_that_are_not_those_of_the_manifest_are_not_taken_and_the_others_are(home: Scene) -> None:
    here, (head, _) = home
    head.write({"good": b"good", "bad": b"as it was"})
    path = head.bucket.root / PREFIX / "bad"
    status = path.stat()
    path.write_bytes(b"as it xxx")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(CorruptObjectError, match="bad does not verify"):
        here.bring()
    assert here.pulled() == {"good": b"good"}
    assert [path for path in (here.bucket.root / TEMPORARY).rglob("*") if path.is_file()] == []


def test_links_of_a_job_are_neither_followed_there_nor_here(home: Scene, tmp_path: Path) -> None:
    here, (head, _) = home
    secret = tmp_path / "secret"
    secret.write_bytes(b"not a checkpoint")
    head.write({"x": b"x"})
    path = head.bucket.root / PREFIX / "y"
    path.symlink_to(secret)
    entry = entry_of("y", secret.read_bytes(), generation=secret.stat().st_mtime_ns)
    manifest = Manifest(cluster="digits", run=RUN, node=0, complete=True, files=[entry])
    head.bucket.write(manifest_name("digits", RUN, 0), to_json(manifest))
    assert here.bring() == 0
    assert here.bucket.stat(PREFIX + "y") is None
    brought = read_manifest(here.bucket, cluster="digits", run=RUN, node=0)
    assert brought is not None
    assert (brought.complete, list(brought.files)) == (False, [])


HAS_A_LOG = json.dumps({"objects": {log_name("digits", RUN): [1, 1]}}).encode() + b"\n"


@pytest.mark.parametrize(
    ("first", "line"),
    [
        (b"", b"x" * 60_000 + b"\n"),
        (b"", b"[" * 100_000 + b"\n"),
        (b"", b"{}\n"),
        (b"", b'{"objects": []}\n'),
        (HAS_A_LOG, b"junk\n"),
        (HAS_A_LOG, b'{"size": -1, "generation": 1}\n'),
        (HAS_A_LOG, b'{"size": 1.0, "generation": 1}\n'),
        (HAS_A_LOG, b'{"size": 1, "generation": 9223372036854775808}\n'),
        (HAS_A_LOG, b'{"size": 1099511627776, "generation": 1}\n'),
    ],
)
def test_a_node_that_sends_something_else_is_cut_off(home: Scene, first: bytes, line: bytes) -> None:
    here, (head, _) = home

    def flood(channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError):
            channel.sendall(first)
            while True:
                channel.sendall(line)

    head.programs["hvdcloud-node send"] = flood
    with pytest.raises(NodeError, match="node digits-0 does not send what it was asked for"):
        here.bring()
    assert list(here.bucket.list("")) == []
    assert here.outside() == set()


def test_a_checkpoint_that_is_shorter_than_its_manifest_promises_is_not_waited_for(home: Scene) -> None:
    here, (head, _) = home
    forge(head, {"huge": b"x"}, size=1 << 60)
    with pytest.raises(NodeError, match="does not send what it was asked for"):
        here.bring()
    assert here.bucket.stat(PREFIX + "huge") is None


@pytest.mark.parametrize("name", ["digits/../x", "x", f"other/{RUN}/.hvdcloud/log", f"digits/{RUN}/x", "digits//", ""])
def test_a_node_is_asked_for_its_part_of_a_run_alone_whatever_it_offers(home: Scene, name: str) -> None:
    here, (head, _) = home
    asked: list[bytes] = []
    ended = threading.Event()

    def offer(channel: paramiko.Channel) -> None:
        asked.append(channel.recv(1 << 15))
        offered = {name: [1, 1], manifest_name("digits", RUN, 1): [1, 1]}
        channel.sendall(json.dumps({"objects": offered}).encode() + b"\n")
        while data := channel.recv(1 << 15):
            asked.append(data)
        ended.set()

    head.programs["hvdcloud-node send"] = offer
    assert here.bring() == 0
    assert ended.wait(DEADLINE)
    assert b"".join(asked).count(b"\n") == 1
    assert list(here.bucket.list("")) == []


def test_nodes_get_what_they_lack_to_continue_and_restore_it(home: Scene, tmp_path: Path) -> None:
    here, (head, other) = home
    head.write({"epoch-1.pt": b"one", "epoch-2.pt": b"two"})
    other.write({"extra": b"of node 1"})
    here.bring(0)
    here.bring(1)
    # Each the other's files and manifest.
    assert here.send(0) == 2
    assert here.send(1) == 3
    assert (here.send(0), here.send(1)) == (0, 0)
    for node in (head, other):
        directory = tmp_path / f"restored-{node.index}"
        assert restore(node.bucket, cluster="digits", run_from=RUN, directory=directory) == 3
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
            "epoch-1.pt": b"one",
            "epoch-2.pt": b"two",
            "extra": b"of node 1",
        }
    # What came from here does not come back under another name.
    assert here.bring(0) == here.bring(1) == 0


def test_a_node_whose_own_manifest_is_newer_keeps_it(home: Scene) -> None:
    here, (head, _) = home
    head.write({"a": b"a"}, complete=False)
    here.bring(0)
    head.write({"b": b"b"})
    newer = head.bucket.read(manifest_name("digits", RUN, 0))
    here.send(0)
    assert head.bucket.read(manifest_name("digits", RUN, 0)) == newer


def test_damaged_bytes_that_are_sent_to_a_node_do_not_become_an_object(home: Scene) -> None:
    _, (head, _) = home
    name = f"{PREFIX}x"
    original = ObjectInfo(name=name, size=3, generation=1000, crc32c=crc32c_of_bytes(b"abc"))
    request = json.dumps({"keep": True, "objects": [asdict(original)]}).encode() + b"\nabX"
    out, _ = head.start("bucket").communicate(request, timeout=300)
    assert "does not verify" in json.loads(out)["error"]
    assert head.bucket.stat(name) is None
