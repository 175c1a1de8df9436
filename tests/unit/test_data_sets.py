"""Data sets: what is asked and said, names, listings and checksums, without a process or a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from hvdcloud.errors import ExitCode, HvdcloudError, UsageError
from hvdcloud.node.data import listing
from hvdcloud.node.data.names import check_names
from hvdcloud.node.data.sets import FAILED, READY, DataRequest, DataSet, DataState
from hvdcloud.storage.base import ObjectInfo
from hvdcloud.storage.checksum import combined_crc32c, crc32c_text

TRAIN = DataSet(name="train", source="gs://bucket/set")


def test_a_request_survives_its_way() -> None:
    request = DataRequest(sets=(TRAIN, DataSet(name="v", source="file:///x", mounted=True)), index=1, count=3)
    assert DataRequest.from_json(request.to_json()) == request


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"sets": {}},
        {"sets": [1]},
        {"sets": [{"name": "a"}]},
        {"sets": [{"name": "../a", "source": "gs://b"}]},
        {"sets": [{"name": ".hvdcloud", "source": "gs://b"}]},
        {"sets": [{"name": "a", "source": "gs://b", "per_node": "some"}]},
        {"sets": [{"name": "a", "source": "gs://b"}, {"name": "a", "source": "gs://c"}]},
        {"sets": [], "index": 2, "count": 2},
        {"sets": [], "index": -1},
        {"sets": [], "count": True},
        {"sets": [], "endpoint": 7},
    ],
    ids=str,
)
def test_what_is_no_request_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        DataRequest.from_json(value)


def test_a_state_survives_its_way_and_nonsense_in_it_is_left_out() -> None:
    state = DataState(name="train", phase=READY, bytes=7, total_bytes=7, files=1, total_files=1, seconds=0.5)
    assert DataState.from_json(state.to_json()) == state
    odd = {"name": "train", "phase": FAILED, "bytes": -3, "files": "many", "seconds": float("nan"), "exit_code": 77}
    assert DataState.from_json(odd) == DataState(
        name="train", phase=FAILED, error="no reason was given", exit_code=ExitCode.NODE
    )
    with pytest.raises(UsageError):
        DataState.from_json({"name": "train", "phase": "dancing"})


@pytest.mark.parametrize(
    "names",
    [
        ["a", "a-b", "a/b"],
        ["a", "a"],
        ["../a"],
        ["/a"],
        ["a//b"],
        ["a/./b"],
        ["a\x01"],
        [".git/config"],
        ["x/.GIT/config"],
        ["d/HEAD", "d/objects/1", "d/refs/x"],
        ["x" * 256],
        [".hvdcloud/x"],
    ],
    ids=str,
)
def test_names_that_cannot_be_files_are_refused(names: list[str]) -> None:
    with pytest.raises(HvdcloudError):
        check_names(lambda: names, ignores_case=False)


def test_names_that_differ_in_case_are_both_named_where_the_disk_ignores_it() -> None:
    names = ["a/Cat.png", "a/cat.png", "a/dog.png"]
    check_names(lambda: names, ignores_case=False)
    with pytest.raises(UsageError, match=r"a/Cat\.png and a/cat\.png"):
        check_names(lambda: names, ignores_case=True)


def test_ordinary_names_pass() -> None:
    check_names(lambda: ["a", "a-b/c", "a.b", "head.txt", "objects/HEAD", "ü/日本"], ignores_case=True)


class _Pages:
    url = "gs://bucket/set"

    def __init__(self, count: int) -> None:
        self._count = count

    def pages(self, *, start: str = "", end: str = "") -> Iterator[list[ObjectInfo]]:
        every = [
            ObjectInfo(name=f"o{i:06}", size=i, crc32c="AAAAAA==", generation=i + 1, updated=0.0)
            for i in range(self._count)
        ]
        mine = [each for each in every if each.name >= start and (not end or each.name < end)]
        for first in range(0, len(mine), 1000):
            yield mine[first : first + 1000]

    def read(self, *_: object, **__: object) -> int:
        raise AssertionError("nothing is read")

    def close(self) -> None:
        """Nothing is open."""


def _list(path: Path, count: int, *, index: int = 0, of: int = 1, earlier: Path | None = None) -> int:
    wanted = DataSet(name="train", source="gs://bucket/set", per_node="all" if of == 1 else "shard")
    request = DataRequest(sets=(wanted,), index=index, count=of)
    files, _ = listing.write_listing(path, wanted, request, lambda: _Pages(count), earlier=earlier)
    return files


def test_a_listing_in_parts_is_the_same_bytes(tmp_path: Path) -> None:
    assert _list(tmp_path / "a", 12_000) == 12_000
    assert _list(tmp_path / "b", 12_000, earlier=tmp_path / "a") == 12_000
    assert (tmp_path / "a").stat().st_size > 256 << 10
    assert listing.same(tmp_path / "a", tmp_path / "b")
    _list(tmp_path / "c", 12_001, earlier=tmp_path / "a")
    assert not listing.same(tmp_path / "a", tmp_path / "c")
    assert listing.same_source(tmp_path / "a", tmp_path / "c")
    assert not (tmp_path / "a.0").exists()


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_every_file_is_on_one_node(tmp_path: Path, nodes: int) -> None:
    found: list[str] = []
    for index in range(nodes):
        _list(tmp_path / "x", 50, index=index, of=nodes)
        share = list(listing.names(tmp_path / "x"))
        assert share == [f"o{i:06}" for i in range(50)][index::nodes]
        found += share
    assert sorted(found) == [f"o{i:06}" for i in range(50)]


def test_nothing_to_list_and_too_many_nodes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no objects"):
        _list(tmp_path / "x", 0)
    with pytest.raises(UsageError, match="3 files for 4 nodes"):
        _list(tmp_path / "x", 3, index=3, of=4)


@pytest.mark.parametrize("split", [0, 1, 7, 5000, 9999, 10_000])
def test_checksums_of_parts_make_that_of_the_whole(split: int) -> None:
    data = bytes(range(256)) * 40
    data = data[:10_000]
    first, second = google_crc32c.value(data[:split]), google_crc32c.value(data[split:])
    combined = combined_crc32c(first, second, second_size=len(data) - split)
    assert crc32c_text(combined) == crc32c_text(google_crc32c.value(data))
