"""What an engine's `load` is given: an image's configuration and those of its layers that the engine lacks. Pure.

An engine looks for each layer by the digests of itself and of all below it (`image/tarexport/load.go` in moby), and
opens the layer's file only when it has none: files of layers that are there may be left out. An image of the first
layers of another one keeps them at the engine until the rest arrives.

Engines with containerd's store, as Docker from 29 on, keep layers as the files that they were given, and look for them
by these files' digests. Files that are there may be left out as well, of an OCI image layout only.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.image.publish.oci import OCI_CONFIG, OCI_INDEX, OCI_LAYER, OCI_MANIFEST, descriptor, digest_of

LABEL_PART_OF = "hvdcloud-part-of"
"""On an image of the first layers of another one: the other's id."""
_END = bytes(2 * tarfile.BLOCKSIZE)
# https://www.rfc-editor.org/rfc/rfc1952#page-6 and https://www.rfc-editor.org/rfc/rfc8878#section-3.1.1
_PACKED = {b"\x1f\x8b": "+gzip", b"\x28\xb5\x2f\xfd": "+zstd"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The image that an engine is to have.

    Attributes:
        id: as its own engine knows it, `sha256:…`.
        tag: `NAME:TAG` that it gets; "": none.
        layers: digests of the layers' content, the lowest first.
        architecture, os: as in its configuration.
    """

    id: str
    tag: str
    layers: tuple[str, ...]
    architecture: str
    os: str
    labels: tuple[tuple[str, str], ...]
    """Of the images of its first layers."""

    def part(self, count: int) -> bytes:
        """The configuration of an image of its `count` lowest layers."""
        document = {
            "architecture": self.architecture,
            "config": {"Labels": {**dict(self.labels), LABEL_PART_OF: self.id}},
            "created": "1970-01-01T00:00:00Z",
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "hvdcloud"}] * count,
            "os": self.os,
            "rootfs": {"type": "layers", "diff_ids": self.layers[:count]},
        }
        return json.dumps(document, sort_keys=True).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """A file of an archive."""

    size: int
    chunks: Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A layer as a file, which may be compressed.

    Attributes:
        digest: of the file, `sha256:…`.
        media_type: as OCI's image specification names it.
    """

    digest: str
    size: int
    media_type: str


def blob_of(digest: str, size: int, beginning: bytes) -> Blob:
    """What a layer's file is, by its first bytes."""
    packed = next((name for magic, name in _PACKED.items() if beginning.startswith(magic)), "")
    return Blob(digest=digest, size=size, media_type=f"{OCI_LAYER}{packed}")


def wanted_from(inspected: Mapping[str, Any], *, tag: str, labels: Mapping[str, str]) -> Wanted:
    """What the engine of the image says of it."""
    return Wanted(
        id=inspected["Id"],
        tag=tag,
        layers=tuple(inspected["RootFS"]["Layers"]),
        architecture=inspected["Architecture"],
        os=inspected["Os"],
        labels=tuple(sorted(labels.items())),
    )


def same_image(here: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether two engines speak of one image: by its id, or, as engines with containerd's store number images in
    another way, by its layers and the time at which it was made."""
    if here["Id"] == there["Id"]:
        return True
    return all(here[key] == there[key] for key in ("RootFS", "Created", "Architecture"))


def archive(config: bytes, layers: Sequence[str], present: Mapping[str, Content], *, tag: str = "") -> Iterator[bytes]:
    """A tar file for `load`.

    Args:
        config: the image's configuration, byte by byte: its digest is the image's id.
        layers: of the image, the lowest first.
        present: the content of those that the engine lacks.
    """
    manifest = [
        {"Config": "config.json", "Layers": [_file_name(layer) for layer in layers], "RepoTags": [tag] if tag else None}
    ]
    documents = {"config.json": config, "manifest.json": json.dumps(manifest).encode()}
    return _tar(documents, {_file_name(layer): content for layer, content in present.items()})


def layout(
    config: bytes, blobs: Sequence[Blob], present: Mapping[str, Content], *, manifest: bytes = b""
) -> Iterator[bytes]:
    """A tar file for `load` of an engine with containerd's store: an OCI image layout, of an image without a name.

    See https://github.com/opencontainers/image-spec/blob/v1.1.1/image-layout.md.

    Args:
        config: the image's configuration.
        blobs: the image's layers, the lowest first.
        present: the content of those files that the engine lacks, by their digests.
        manifest: the image's, byte by byte: its digest is the image's id; empty: one is made.
    """
    layers = [{"mediaType": blob.media_type, "digest": blob.digest, "size": blob.size} for blob in blobs]
    made = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor(config, OCI_CONFIG),
        "layers": layers,
    }
    manifest = manifest or json.dumps(made).encode()
    index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [descriptor(manifest, OCI_MANIFEST)]}
    documents = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps(index).encode(),
        **{_blob_name(digest_of(data)): data for data in (manifest, config)},
    }
    return _tar(documents, {_blob_name(digest): content for digest, content in present.items()})


def _tar(documents: Mapping[str, bytes], contents: Mapping[str, Content]) -> Iterator[bytes]:
    """A tar file, by the names of its members."""
    for name, data in documents.items():
        yield _header(name, len(data)) + data + _padding(len(data))
    for name, content in contents.items():
        yield _header(name, content.size)
        yield from content.chunks()
        yield _padding(content.size)
    yield _END


def _blob_name(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _file_name(layer: str) -> str:
    return f"{layer.partition(':')[2]}.tar"


def _header(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.GNU_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
