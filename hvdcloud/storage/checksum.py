"""CRC32C, written as Cloud Storage writes it: the base64 of four bytes, big-endian. It finds damage, not forgery."""

from __future__ import annotations

import base64
import errno
import os
import re
import stat
from io import FileIO
from pathlib import Path

import google_crc32c

# Large enough that system calls don't count, small enough that a dozen threads cost nothing.
CHUNK = 1 << 20
# As `crc32c_text` writes it.
CRC32C = re.compile(r"[A-Za-z0-9+/]{6}==")


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
        return crc32c_text(self._value)


def crc32c_of_bytes(data: bytes) -> str:
    return crc32c_text(google_crc32c.value(data))


def crc32c_text(value: int) -> str:
    """As Cloud Storage writes it."""
    return base64.b64encode(value.to_bytes(4, "big")).decode("ascii")


def open_plain(path: Path) -> FileIO:
    """A file for reading; neither a link nor a FIFO, which could lead elsewhere and block.

    Raises FileNotFoundError: there is no such file any more; OSError: it can't be read, such as a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "is no file", str(path))
    return FileIO(descriptor, "rb")


def crc32c_of_file(path: Path) -> tuple[int, str]:
    """Size and CRC32C of what the file holds now. Raises OSError: the file can't be read."""
    with open_plain(path) as file:
        return crc32c_of_descriptor(file.fileno())


def crc32c_of_descriptor(descriptor: int) -> tuple[int, str]:
    """As crc32c_of_file, from the descriptor's present offset on; the descriptor stays open."""
    crc = Crc32c()
    while data := os.read(descriptor, CHUNK):
        crc.update(data)
    return crc.size, crc.text()
