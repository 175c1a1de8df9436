"""Data sets: what is asked and said, names, listings and checksums, without a process or a socket."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvdcloud.errors import CheckpointError, HvdcloudError, UsageError
from hvdcloud.node.data import fetch
from hvdcloud.node.data.fetch import check_names
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.spec import DataRequest, DataSet
from hvdcloud.storage.base import ObjectInfo
from hvdcloud.storage.checksum import crc32c_of_bytes
from hvdcloud.storage.open import open_bucket


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"sets": [1]},
        {"sets": [{"name": "a"}]},
        {"sets": [{"name": "../a", "source": "gs://b"}]},
        {"sets": [{"name": ".hvdcloud", "source": "gs://b"}]},
        {"sets": [{"name": "a", "source": "gs://b"}, {"name": "a", "source": "gs://c"}]},
        {"sets": [], "index": 2, "count": 2},
        {"sets": [], "index": -1},
        {"sets": [], "more": 1},
    ],
    ids=str,
)
def test_what_is_no_request_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        DataRequest.from_json(value)


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a-b", "a/b"],
        ["a", "a"],
        ["../a"],
        ["a//b"],
        ["a\x01"],
        [".git/config"],
        ["d/HEAD", "d/objects/1", "d/refs/x"],
        ["x" * 256],
        [".hvdcloud/x"],
    ],
    ids=str,
)
def test_names_that_cannot_be_files_are_refused(names: list[str]) -> None:
    with pytest.raises(HvdcloudError):
        check_names(names)


def _listed(count: int, *, index: int = 0, of: int = 1, crc32c: str = "AAAAAA==") -> list[str]:
    names = [f"o{number:06}" for number in range(count)]
    found = [ObjectInfo(name=name, size=1, crc32c=crc32c, generation=7) for name in sorted([*names, "folder/"])]
    bucket: Any = SimpleNamespace(url="gs://bucket/set", list=lambda prefix: iter(found))
    wanted = DataSet(name="train", source="gs://bucket/set", per_node="all" if of == 1 else "shard")
    return [each.name for each in fetch.listed(bucket, wanted, index=index, count=of)]


def test_nothing_to_list_and_too_many_nodes() -> None:
    with pytest.raises(UsageError, match="no objects"):
        _listed(0)
    with pytest.raises(UsageError, match="3 files for 4 nodes"):
        _listed(3, index=3, of=4)


@pytest.mark.parametrize("crc32c", ["", "-", "AAAA"])
def test_an_object_whose_bytes_nobody_promises_is_refused(crc32c: str) -> None:
    with pytest.raises(CheckpointError, match=r"no CRC32C of o000000"):
        _listed(3, crc32c=crc32c)


def test_a_data_set_is_on_the_disk_before_it_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    source = (tmp_path / "source").as_uri()
    # A folder's listing may leave the checksum out.
    promised = dataclasses.replace(open_bucket(source).write("one", b"one"), crc32c=crc32c_of_bytes(b"one"))
    monkeypatch.setattr(fetch, "listed", lambda *_, **__: [promised])
    shown: list[NodeData] = []

    def fetch_it() -> NodeData:
        request = DataRequest(sets=(DataSet(name="train", source=source),))
        fetch.Fetch(request, shown.append).run()
        return shown[-1]

    def refuses(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuses)
        state = fetch_it()
    assert (state.phase, "Input/output error" in state.error) == ("failed", True)
    assert not fetch.set_dir("train").exists()
    assert fetch_it().phase == "ready"
