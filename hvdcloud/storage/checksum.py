"""CRC32C, written as Cloud Storage writes it: the base64 of four bytes, big-endian."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import google_crc32c

# Large enough that system calls don't count, small enough that a dozen threads cost nothing.
CHUNK = 1 << 20


class Crc32c:
    """A running checksum and the number of bytes it covers."""

    __slots__ = ("_value", "size")

    def __init__(self) -> None:
        self._value = 0
        self.size = 0

    def update(self, data: bytes) -> None:
        self._value = google_crc32c.extend(self._value, data)
        self.size += len(data)

    def text(self) -> str:
        return base64.b64encode(self._value.to_bytes(4, "big")).decode("ascii")


def crc32c_of_bytes(data: bytes) -> str:
    crc = Crc32c()
    crc.update(data)
    return crc.text()


def crc32c_of_file(path: Path) -> tuple[int, str]:
    """Size and CRC32C of what the file holds now. Raises OSError: the file can't be read."""
    with path.open("rb", buffering=0) as file:
        return crc32c_of_descriptor(file.fileno())


def crc32c_of_descriptor(descriptor: int) -> tuple[int, str]:
    """As crc32c_of_file, from the descriptor's present offset on; the descriptor stays open."""
    crc = Crc32c()
    while data := os.read(descriptor, CHUNK):
        crc.update(data)
    return crc.size, crc.text()
