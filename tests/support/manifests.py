"""Entries of manifests, as a node's agent writes them."""

from __future__ import annotations

from typing import Any

from hvdcloud.checkpoints.manifest import Entry
from hvdcloud.storage.checksum import crc32c_of_bytes


def entry_of(name: str, data: bytes, **changes: Any) -> Entry:
    """What a manifest says of an object with these bytes."""
    fields = {"size": len(data), "crc32c": crc32c_of_bytes(data), "generation": 0, "modified": 1.0}
    return Entry(name=name, **{**fields, **changes})
