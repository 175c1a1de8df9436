"""Images whose layers a test chooses, without a build."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from typing import Any

from tests.support.harness import TEST_LABEL


def layer(name: str, content: bytes) -> bytes:
    """A layer with one file, the same bytes for the same content."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def config_of(layers: Sequence[bytes]) -> bytes:
    """The configuration of an image of these layers."""
    document = {
        "architecture": "amd64",
        "config": {"Labels": {TEST_LABEL: "layers"}, "Cmd": ["/none"]},
        "created": "2026-01-01T00:00:00Z",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [digest(each) for each in layers]},
    }
    return json.dumps(document).encode()


def tar_of(files: Sequence[tuple[str, bytes]]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def load_layers(client: Any, reference: str, layers: Sequence[bytes]) -> str:
    """Have an engine know an image of these layers; returns its id.

    Args:
        client: docker-py's APIClient.
    """
    config = config_of(layers)
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [reference], "Layers": names}]
    files = [("config.json", config), ("manifest.json", json.dumps(manifest).encode())]
    for item in client.load_image(tar_of([*files, *zip(names, layers, strict=True)])):
        assert "error" not in item, item
    return digest(config)
