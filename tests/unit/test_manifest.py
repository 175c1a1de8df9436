"""A manifest comes from a bucket that others can write to: nothing in it is trusted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checkpoints.manifest import (
    LARGEST,
    LAST_SECOND,
    Entry,
    Manifest,
    file_name,
    from_json,
    list_runs,
    load_each,
    load_manifests,
    manifest_name,
    object_name,
    read_manifest,
    run_prefix,
    to_json,
    usual_time,
)
from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import Bucket
from hvdcloud.storage.open import open_bucket

RUN = "20261120-101500-abc123"
ENTRY = Entry(name="a/b.pt", size=3, crc32c="AAAAAA==", generation=17, modified=1.5)
MANIFEST = Manifest(cluster="digits", run=RUN, node=0, complete=True, files=[ENTRY])


@pytest.fixture
def bucket(tmp_path: Path) -> Bucket:
    return open_bucket(f"file://{tmp_path}/bucket")


def plain(**changes: Any) -> bytes:
    value = json.loads(to_json(MANIFEST))
    return json.dumps({k: v for k, v in {**value, **changes}.items() if v is not ...}).encode()


def plain_entry(**changes: Any) -> bytes:
    entry = {**json.loads(to_json(MANIFEST))["files"][0], **changes}
    return plain(files=[{k: v for k, v in entry.items() if v is not ...}])


def test_what_is_written_is_read_back() -> None:
    announced = Entry(name="c", size=0, crc32c="AAAAAA==", generation=0, modified=2.0)
    for manifest in (
        MANIFEST,
        Manifest(cluster="c", run=RUN, node=0, complete=False, files=[replace(ENTRY, version="0badcafe-01234567")]),
        Manifest(cluster="c", run=RUN, node=3, complete=False, files=[], uploading=[announced], resumed="r1"),
    ):
        read = from_json(to_json(manifest), source="x")
        assert to_json(read) == to_json(manifest)
        assert list(read.files) == list(manifest.files)
        assert list(read.uploading) == list(manifest.uploading)


def test_a_later_version_is_an_object_beside_the_first_under_the_same_file_name() -> None:
    later = replace(ENTRY, version="0badcafe")
    assert (ENTRY.object, later.object) == ("a/b.pt", "a/b.pt@0badcafe")
    assert later.name == ENTRY.name
    (written,) = json.loads(to_json(replace(MANIFEST, files=[later])))["files"]
    assert written["version"] == "0badcafe"


def test_its_form_is_the_documented_one() -> None:
    assert json.loads(to_json(MANIFEST)) == {
        "version": 1,
        "cluster": "digits",
        "run": RUN,
        "node": 0,
        "complete": True,
        "files": [{"name": "a/b.pt", "size": 3, "crc32c": "AAAAAA==", "generation": 17, "modified": 1.5}],
    }


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not json",
        b"[]",
        b"[" * 100_000,
        plain(version=2),
        plain(version=True),
        plain(version=...),
        plain(extra=1),
        plain(node="0"),
        plain(complete=1),
        plain(files={}),
        plain(files=["a"]),
        plain(files=...),
        plain(uploading="x"),
        plain(resumed="../x"),
        plain_entry(name=...),
        plain_entry(name=3),
        plain_entry(name="/etc/passwd"),
        plain_entry(name="../x"),
        plain_entry(name="a/../../x"),
        plain_entry(name="a//x"),
        plain_entry(name=""),
        plain_entry(name="a\0b"),
        plain_entry(name=".hvdcloud/manifest-0.json"),
        plain_entry(size=-1),
        plain_entry(size=1.0),
        plain_entry(size=True),
        plain_entry(crc32c="xyz"),
        plain_entry(crc32c=None),
        plain_entry(generation="1"),
        plain_entry(modified="now"),
        plain_entry(modified=-1),
        plain_entry(modified=float("nan")),
        plain_entry(mode=0o777),
        plain_entry(size=2**63),
        plain_entry(size=10**400),
        plain_entry(generation=2**63),
        plain_entry(modified=9e11),
        plain_entry(modified=10**400),
        plain_entry(modified=float("inf")),
        plain(version=10**400),
        plain_entry(name="x" * 256),
        plain_entry(name="a/" + "é" * 128),
        plain_entry(name="a/" * 600 + "b"),
        plain_entry(name="x" * 10_000_000),
        plain_entry(name="\ud800"),
        plain(files=[["x"] * 1_000_000]),
        b'{"version":1,"cluster":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"version":' + b"9" * 5000 + b"}",
        b"\xff\xfe\x00",
        b" " * (LARGEST + 1),
        *(
            plain_entry(version=each)
            for each in (None, 1, "", "x", "0BADCAFE", "0badcafe/x", "0badcafe-", "../0badcafe")
        ),
        plain(files=[json.loads(plain())["files"][0]] * 2),
    ],
    ids=lambda data: ascii(data[-40:]),
)
def test_a_manifest_that_is_not_valid_is_refused(data: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        from_json(data, source="gs://b/manifest-0.json")
    assert "gs://b/manifest-0.json" in caught.value.message
    assert caught.value.hint
    assert len(caught.value.message) < 1500, "of a value that is long only the beginning is quoted"


def test_nodes_never_share_an_object() -> None:
    files = ["x", "a/x", "@node-1/x", "@node-0/x", ".hvdcloud/manifest-0.json", "@node-x"]
    names = [object_name(file, node=node) for node in range(3) for file in files]
    assert len(set(names)) == len(names)
    assert object_name("a/x", node=0) == "a/x"
    assert object_name("a/x", node=2) == "@node-2/a/x"
    assert object_name("@node-1/x", node=0) == "@node-0/@node-1/x"
    for node in range(3):
        for file in files:
            assert file_name(object_name(file, node=node)) == file


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc", "-x", "ü", "x" * 200])
def test_a_name_that_is_no_run_never_becomes_a_path(name: str) -> None:
    with pytest.raises(CheckpointError):
        run_prefix("digits", name)
    with pytest.raises(CheckpointError):
        run_prefix(name, RUN)


def test_the_manifests_of_a_run_come_by_node_number(bucket: Bucket) -> None:
    for node in (10, 2, 0):
        manifest = Manifest(cluster="digits", run=RUN, node=node, complete=False, files=[])
        bucket.write(manifest_name("digits", RUN, node), to_json(manifest))
    bucket.write(f"digits/{RUN}/.hvdcloud/manifest-x.json", b"not ours")
    assert [manifest.node for manifest in load_manifests(bucket, cluster="digits", run=RUN)] == [0, 2, 10]
    assert load_manifests(bucket, cluster="digits", run="none") == []
    assert read_manifest(bucket, cluster="digits", run=RUN, node=1) is None


@pytest.mark.parametrize(
    ("cluster", "run", "node"), [("digits", RUN, 0), ("letters", RUN, 1), ("digits", "20261120-101500-ffffff", 1)]
)
def test_a_manifest_of_another_cluster_run_or_node_is_refused(
    bucket: Bucket, cluster: str, run: str, node: int
) -> None:
    manifest = Manifest(cluster=cluster, run=run, node=node, complete=True, files=[])
    bucket.write(manifest_name("digits", RUN, 1), to_json(manifest))
    with pytest.raises(CheckpointError, match=f"belongs to node {node} of {cluster}/{run}"):
        load_manifests(bucket, cluster="digits", run=RUN)


FOREIGN = Entry(name="@node-2/x", size=0, crc32c="AAAAAA==", generation=1, modified=0.0)


@pytest.mark.parametrize(("files", "uploading"), [([FOREIGN], []), ([], [FOREIGN])], ids=["listed", "announced"])
def test_a_node_can_not_speak_for_another_ones_files(
    bucket: Bucket, files: list[Entry], uploading: list[Entry]
) -> None:
    manifest = Manifest(cluster="digits", run=RUN, node=1, complete=True, files=files, uploading=uploading)
    bucket.write(manifest_name("digits", RUN, 1), to_json(manifest))
    with pytest.raises(CheckpointError, match="not a file of node 1"):
        load_manifests(bucket, cluster="digits", run=RUN)


def test_a_manifest_that_can_not_be_used_leaves_the_others(bucket: Bucket, tmp_path: Path) -> None:
    for node in (0, 2, 4):
        manifest = Manifest(cluster="digits", run=RUN, node=node, complete=True, files=[])
        bucket.write(manifest_name("digits", RUN, node), to_json(manifest))
    bucket.write(manifest_name("digits", RUN, 1), b"junk")
    with (tmp_path / "bucket" / manifest_name("digits", RUN, 3)).open("wb") as file:
        file.truncate(1 << 40)
    for name in ("manifest-1000.json", "manifest-01.json", "manifest-99999999999999999999.json", "manifest--1.json"):
        bucket.write(f"digits/{RUN}/.hvdcloud/{name}", to_json(MANIFEST))
    good, bad = load_each(bucket, cluster="digits", run=RUN)
    assert [manifest.node for manifest in good] == [0, 2, 4]
    assert [each.node for each in bad] == [1, 3]
    assert all(f"manifest-{each.node}.json" in each.error.message for each in bad)


@pytest.mark.parametrize(
    ("on_disk", "listed"), [(-5.0, 0.0), (1.5, 1.5), (1e18, LAST_SECOND)], ids=["before 1970", "usual", "far away"]
)
def test_a_nodes_odd_times_make_no_manifest_that_is_refused(on_disk: float, listed: float) -> None:
    manifest = replace(MANIFEST, files=[replace(ENTRY, modified=usual_time(on_disk))])
    assert from_json(to_json(manifest), source="x").files[0].modified == listed


@pytest.mark.parametrize("name", ["train", ".git", "20261121-000000-bbbbbg", "x" * 100, "20261121-000000-BBBBBB"])
def test_only_folders_with_our_own_form_of_name_are_runs(bucket: Bucket, name: str) -> None:
    bucket.write(f"digits/{name}/x", b"")
    assert list_runs(bucket, "digits") == []


def test_runs_are_listed_oldest_first_and_by_the_clusters_id(bucket: Bucket) -> None:
    for run in ("20261121-000000-bbbbbb", "20261120-000000-aaaaaa", "20261122-000000-aaaaaa"):
        bucket.write(f"digits/{run}/x", b"")
    bucket.write("digits/file", b"")
    bucket.write("other/20261123-000000-aaaaaa/x", b"")
    assert list_runs(bucket, "digits", suffix="aaaaaa") == ["20261120-000000-aaaaaa", "20261122-000000-aaaaaa"]
    assert len(list_runs(bucket, "digits")) == 3
    assert list_runs(bucket, "none") == []
