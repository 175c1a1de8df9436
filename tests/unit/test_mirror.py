"""What of a node's bucket belongs into the laptop's, and what is said while it arrives."""

from __future__ import annotations

from hvdcloud.checkpoints.manifest import (
    Entry,
    Manifest,
    from_json,
    to_json,
)
from hvdcloud.remote.mirror import in_between, originals

RUN = "20261121-101112-abcdef"


def entry(name: str, *, generation: int = 7, modified: float = 1.0) -> Entry:
    return Entry(name=name, size=3, crc32c="AAAAAA==", generation=generation, modified=modified)


def manifest(*files: Entry, node: int = 0, complete: bool = True) -> Manifest:
    return Manifest(cluster="digits", run=RUN, node=node, complete=complete, files=files)


def lacking(*names: str) -> set[str]:
    return {f"digits/{RUN}/{name}" for name in names}


def test_the_newest_comes_first_and_each_object_has_its_full_name() -> None:
    found = originals(manifest(entry("a", modified=1.0), entry("b", modified=3.0), entry("c", modified=2.0)))
    assert [each.name for each in found] == [f"digits/{RUN}/{name}" for name in "bca"]
    assert {(each.size, each.generation, each.crc32c) for each in found} == {(3, 7, "AAAAAA==")}


def test_what_is_here_is_listed_and_the_rest_announced() -> None:
    now = in_between(manifest(entry("a"), entry("b")), None, lacking=lacking("b"))
    assert (now.complete, now.files, now.uploading) == (False, [entry("a")], [entry("b", generation=0)])
    assert from_json(to_json(now), source="x").files == now.files


def test_what_was_here_stays_listed_until_what_replaces_it_has_arrived() -> None:
    before = manifest(entry("last", generation=5), complete=False)
    after = manifest(entry("last", generation=9))
    now = in_between(after, before, lacking=lacking("last"))
    assert (now.files, now.uploading) == ([entry("last", generation=5)], [entry("last", generation=0)])
    assert in_between(after, before, lacking=()).files == [entry("last", generation=9)]


def test_it_is_never_complete_before_the_nodes_own_manifest_is_here() -> None:
    assert not in_between(manifest(entry("a")), None, lacking=()).complete
