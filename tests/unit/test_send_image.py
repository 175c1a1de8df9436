"""What is sent to a host's engine, and how an engine's `save` is read."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from hvdcloud.errors import CapacityError, ImageError
from hvdcloud.image.publish.compressed import BLOCK_BYTES, Pace, compressed
from hvdcloud.image.publish.host import Host
from hvdcloud.image.publish.layer_archive import (
    LABEL_PART_OF,
    Content,
    Wanted,
    archive,
    blob_of,
    layout,
    same_image,
    wanted_from,
)
from hvdcloud.image.publish.layer_export import Export
from hvdcloud.image.publish.portion import portions
from tests.support.layered_image import config_of, digest, layer, tar_of

BASE, TOP = layer("base", random.Random(1).randbytes(9 << 20)), layer("top", b"top")
LAYERS = (BASE, TOP)
DIGESTS = tuple(map(digest, LAYERS))
CONFIG = config_of(LAYERS)
WANTED = Wanted(
    id=digest(CONFIG),
    tag="hvdcloud/project:1",
    layers=DIGESTS,
    architecture="amd64",
    os="linux",
    labels=(("managed-by", "hvdcloud"),),
)


def content(data: bytes) -> Content:
    return Content(size=len(data), chunks=lambda: [data[:100], data[100:]])


def bare(sha256: str) -> str:
    return sha256.removeprefix("sha256:")


def as_20(layers: Sequence[bytes]) -> bytes:
    """Docker up to 24: folders with names of the engine's choice, a layer that occurs twice is a link."""
    folders = [f"{number:064x}" for number in reversed(range(len(layers)))]
    files = [(f"{folder}/layer.tar", data) for folder, data in zip(folders, layers, strict=True)]
    manifest = [{"Config": f"{bare(digest(CONFIG))}.json", "Layers": [name for name, _ in files], "RepoTags": None}]
    named = [(f"{bare(digest(CONFIG))}.json", CONFIG), ("manifest.json", json.dumps(manifest).encode())]
    return tar_of([*sorted(files), *named])


def as_25(layers: Sequence[bytes], more: Sequence[bytes] = ()) -> bytes:
    """Docker from 25 on: blobs by digest; from 29 on the image's manifest is one of them."""
    blobs = sorted((f"blobs/sha256/{bare(digest(data))}", data) for data in (*layers, CONFIG, *more))
    names = [f"blobs/sha256/{bare(digest(data))}" for data in layers]
    manifest = [{"Config": f"blobs/sha256/{bare(digest(CONFIG))}", "Layers": names, "RepoTags": None}]
    return tar_of([*blobs, ("index.json", b"{}"), ("manifest.json", json.dumps(manifest).encode())])


def export_of(
    data: bytes,
    *,
    lowest: bytes | None = None,
    packed: threading.Event | None = None,
    image_id: str = WANTED.id,
    wanted: Sequence[str] = DIGESTS,
) -> Export:
    """Of an engine that gives this, once it has packed it, and at once what it has of the lowest layers alone."""

    def chunks() -> list[bytes]:
        assert packed is None or packed.wait(timeout=60)
        return [data[start : start + 70_001] for start in range(0, len(data), 70_001)]

    alone = None if lowest is None else lambda: [lowest]
    counts = Counter(wanted)
    return Export(chunks, lowest=alone, image="digits", image_id=image_id, layers=DIGESTS, wanted=counts)


def read(export: Export, sha256: str) -> bytes:
    found = export.layer(sha256)
    data = b"".join(found.chunks())
    assert len(data) == found.size
    return data


@pytest.mark.parametrize("saved", [as_20, as_25])
def test_an_export_gives_layers_by_their_digests(saved: object) -> None:
    assert callable(saved)
    with export_of(saved(LAYERS)) as export:
        assert [read(export, sha256) for sha256 in DIGESTS] == [BASE, TOP]
        assert export.config() == CONFIG
        assert export.left(DIGESTS) == len(BASE) + len(TOP)


@pytest.mark.parametrize("inside", [False, True], ids=["25", "29"])
def test_containerds_store_keeps_layers_compressed_and_names_the_image_by_its_manifest(*, inside: bool) -> None:
    packed = [gzip.compress(data, 1, mtime=0) for data in LAYERS]
    manifest = json.dumps({"config": {"digest": digest(CONFIG)}, "layers": [{"digest": digest(d)} for d in packed]})
    more = [manifest.encode()] if inside else []
    with export_of(as_25(packed, more), image_id=digest(manifest.encode())) as export:
        assert [read(export, sha256) for sha256 in DIGESTS] == packed
        assert export.config() == CONFIG
        assert [(blob.digest, blob.size) for blob in export.blobs()] == [(digest(d), len(d)) for d in packed]
        assert {blob.media_type for blob in export.blobs()} == {"application/vnd.oci.image.layer.v1.tar+gzip"}
        assert export.manifest == (manifest.encode() if inside else b"")


def test_the_lowest_layers_need_not_wait_for_an_engine_that_packs_all_of_them_first() -> None:
    packed = threading.Event()
    lowest = as_20(LAYERS[:1]).replace(b"config", b"others")
    with export_of(as_20(LAYERS), lowest=lowest, packed=packed) as export:
        export.read_lowest()
        export.read_lowest()
        assert read(export, DIGESTS[0]) == BASE
        export.done_with(DIGESTS[:1])
        packed.set()
        assert read(export, DIGESTS[1]) == TOP
        assert export.config() == CONFIG
        # It was read again, and nobody wants it.
        assert export.left(DIGESTS[:1]) is None


@pytest.mark.parametrize("lowest", [b"", as_20(LAYERS)[:5000]])
def test_lowest_layers_that_cannot_be_read_alone_are_read_with_the_others(lowest: bytes) -> None:
    with export_of(as_20(LAYERS), lowest=lowest) as export:
        export.read_lowest()
        assert [read(export, sha256) for sha256 in DIGESTS] == [BASE, TOP]
        assert export.config() == CONFIG


def test_a_layer_is_forgotten_when_the_last_host_has_it() -> None:
    with export_of(as_25(LAYERS), wanted=[*DIGESTS, DIGESTS[0]]) as export:
        export.config()
        export.done_with(DIGESTS)
        assert export.left(DIGESTS[:1]) == len(BASE)
        assert export.left(DIGESTS[1:]) is None
        export.done_with(DIGESTS[:1])
        assert export.left(DIGESTS[:1]) is None


@pytest.mark.parametrize("saved", [as_20, as_25])
def test_a_save_that_breaks_off_is_an_error_and_no_image(saved: object) -> None:
    assert callable(saved)
    with (
        export_of(saved(LAYERS)[: len(BASE) // 2]) as export,
        pytest.raises(ImageError, match="did not give the image digits"),
    ):
        export.layer(DIGESTS[0])


def test_an_archive_has_the_content_of_missing_layers_alone() -> None:
    data = b"".join(archive(CONFIG, DIGESTS, {DIGESTS[1]: content(TOP)}, tag=WANTED.tag))
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        assert found.getnames() == ["config.json", "manifest.json", f"{bare(DIGESTS[1])}.tar"]
        files = {name: found.extractfile(name) for name in found.getnames()}
        contents = {name: file.read() for name, file in files.items() if file is not None}
    assert contents["config.json"] == CONFIG
    assert contents[f"{bare(DIGESTS[1])}.tar"] == TOP
    (manifest,) = json.loads(contents["manifest.json"])
    assert manifest["Layers"] == [f"{bare(sha256)}.tar" for sha256 in DIGESTS]
    assert manifest["RepoTags"] == ["hvdcloud/project:1"]


def test_a_part_is_an_image_of_the_first_layers_that_says_what_it_is_of() -> None:
    part = json.loads(WANTED.part(1))
    assert part["rootfs"]["diff_ids"] == [DIGESTS[0]]
    assert part["config"]["Labels"] == {"managed-by": "hvdcloud", LABEL_PART_OF: WANTED.id}
    assert WANTED.part(1) == WANTED.part(1) != WANTED.part(2)


@pytest.mark.parametrize(
    ("sizes", "found"),
    [([], []), ([5], [1]), ([50], [1]), ([1, 2, 3], [3]), ([50, 1, 1, 9, 50, 1], [1, 2, 1, 1, 1]), ([0] * 40, [40])],
)
def test_small_layers_go_together_and_a_large_one_alone(sizes: list[int], found: list[int]) -> None:
    assert portions(sizes, enough=10) == found


def test_an_image_is_the_same_by_its_id_or_else_by_its_layers_and_its_time() -> None:
    here = {"Id": "sha256:1", "RootFS": {"Layers": ["a"]}, "Created": "t", "Architecture": "amd64", "Os": "linux"}
    assert same_image(here, {**here, "RootFS": {}})
    assert same_image(here, {**here, "Id": "sha256:2"})
    assert not same_image(here, {**here, "Id": "sha256:2", "Created": "later"})
    assert wanted_from(here, tag="a:1", labels={}).layers == ("a",)


@pytest.mark.parametrize(
    ("wire", "compress", "ratio", "pays"),
    [
        (0.0, 1e-8, 0.3, False),
        (2e-9, 1e-8, 0.3, False),
        (1e-7, 1e-8, 0.3, True),
        (1e-7, 1e-8, 1.0, False),
        (1e-7, 0.0, 1.0, False),
    ],
)
def test_only_what_makes_a_slow_connection_faster_is_compressed(
    wire: float, compress: float, ratio: float, pays: bool
) -> None:
    assert Pace(wire=wire, compress=compress, ratio=ratio).pays() == pays


@pytest.mark.parametrize(
    ("unpack", "pays", "fast"), [(1e-8, True, False), (5e-8, True, False), (1e-7, False, True), (3e-7, False, True)]
)
def test_nothing_is_compressed_for_a_host_that_takes_longer_to_unpack(unpack: float, pays: bool, fast: bool) -> None:
    pace = Pace(wire=1e-7, compress=1e-8, ratio=0.3)
    pace.unpacked(64 << 20, unpack * (64 << 20))
    # A small portion takes its time for something else.
    pace.unpacked(1000, 60.0)
    assert (pace.pays(), pace.is_fast()) == (pays, fast)


def test_nothing_is_compressed_where_others_need_the_processors() -> None:
    pace = Pace(wire=1e-7, compress=1e-8, ratio=0.3)
    pace.compressed(1 << 20, 300_000, seconds=0.03, busy=0.01)
    assert (pace.pays(), pace.is_fast()) == (False, True)
    pace.compressed(1 << 20, 300_000, seconds=0.011, busy=0.01)
    assert (pace.pays(), pace.is_fast()) == (True, False)


def test_a_slow_connection_gets_fewer_bytes_of_the_same_content() -> None:
    data = b"abcdefgh" * (BLOCK_BYTES * 3)
    slow, fast = Pace(wire=1.0), Pace()
    chunks = [data[:100], data[100:BLOCK_BYTES], b"", data[BLOCK_BYTES:]]

    def sent(pace: Pace) -> bytes:
        found = []
        for member in compressed(chunks, pace):
            found.append(member)
            # However long this process really took.
            pace.wire = 1.0 if pace is slow else 1e-12
        return b"".join(found)

    through_slow, through_fast = sent(slow), sent(fast)
    assert gzip.decompress(through_slow) == gzip.decompress(through_fast) == data
    # What was begun before the speed was known is as large on both.
    assert len(through_slow) < len(through_fast) // 2


def test_a_fast_connection_gets_the_content_as_it_is() -> None:
    pace = Pace(wire=1e-9, compress=1e-8)
    # No chunk is empty: that would end a chunked request.
    assert list(compressed([b"one", b"", b"two"], pace)) == [b"one", b"two"]
    assert pace.wire > 0.0


def test_an_oci_layout_leads_from_its_index_to_the_files_that_are_in_it() -> None:
    blobs = [blob_of(digest(BASE), len(BASE), BASE[:4]), blob_of(digest(TOP), len(TOP), TOP[:4])]
    data = b"".join(layout(CONFIG, blobs, {digest(TOP): content(TOP)}))
    with tarfile.open(fileobj=io.BytesIO(data)) as found:
        files = {member.name: found.extractfile(member).read() for member in found}  # type: ignore[union-attr]
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}

    def blob(descriptor: dict[str, Any]) -> bytes:
        found = files[f"blobs/sha256/{bare(descriptor['digest'])}"]
        assert (digest(found), len(found)) == (descriptor["digest"], descriptor["size"])
        return found

    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(blob(entry))
    assert blob(manifest["config"]) == CONFIG
    assert [layer["digest"] for layer in manifest["layers"]] == list(DIGESTS)
    assert blob(manifest["layers"][1]) == TOP
    assert f"blobs/sha256/{bare(DIGESTS[0])}" not in files


class Store:
    """What an engine with containerd's store answers to an image that it cannot unpack."""

    def __init__(self) -> None:
        self.removed: list[str] = []

    def load_image(self, chunks: Iterable[bytes], *, quiet: bool) -> list[dict[str, str]]:
        assert b"".join(chunks)
        assert quiet
        return [
            {"stream": "Loaded image ID: sha256:0da7\n"},
            {"stream": 'Error unpacking image sha256:0da7: apply layer error for "x": no space left on device\n'},
        ]

    def remove_image(self, image: str) -> None:
        self.removed.append(image)


def test_an_image_that_containerd_took_and_cannot_unpack_is_deleted_and_an_error() -> None:
    store = Store()
    host = Host(name="gpu1", client=store, wanted=WANTED, say=lambda _: None, keeps_files=True)
    with pytest.raises(CapacityError, match="the disk of gpu1's Docker engine is full"):
        host._load(CONFIG, 2, {})
    assert store.removed == ["sha256:0da7"]
