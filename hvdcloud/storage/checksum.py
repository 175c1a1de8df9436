"""CRC32C, written as Cloud Storage writes it: the base64 of four bytes, big-endian. It finds damage, and SHA-256 finds
intent: for any bytes others with the same CRC32C are easily made."""

from __future__ import annotations

import base64
import errno
import functools
import hashlib
import os
import queue
import re
import stat
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType

import google_crc32c

# Large enough that system calls don't count, small enough that a dozen threads cost nothing.
CHUNK = 1 << 20
# Bytes of an upload that are kept for SHA-256, and how many parts beyond them may wait.
KEPT = 64 << 20
_PARTS = 1
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


def combined_crc32c(first: int, second: int, *, second_size: int) -> int:
    """The CRC32C of two runs of bytes, one after the other, of which the second has `second_size` bytes.

    Zeros that follow bytes are a linear map of their CRC; squaring the map of one zero doubles their number
    (crc32_combine of zlib, with Castagnoli's polynomial).
    """
    return _applied(_zeros(second_size), first) ^ second


@functools.lru_cache(maxsize=16)
def _zeros(count: int) -> Sequence[int]:
    """The map of that many zero bytes, by columns: what takes long, and is the same for all ranges of one size."""
    total: list[int] = [1 << bit for bit in range(32)]
    # The map of one zero bit.
    power = [0x82F63B78, *(1 << bit for bit in range(31))]
    bits = 8 * count
    while bits:
        if bits & 1:
            total = [_applied(power, column) for column in total]
        bits >>= 1
        power = [_applied(power, column) for column in power]
    return total


def _applied(columns: Sequence[int], value: int) -> int:
    total = 0
    for column in columns:
        if not value:
            break
        if value & 1:
            total ^= column
        value >>= 1
    return total


class Sha256:
    """A running SHA-256. To hash is the slowest thing that happens to a byte on its way, so an upload does not wait for
    it: the first bytes are kept until `text` is asked for, when the object is in the bucket. Of a larger file all are
    hashed in a thread of its own; hashlib frees the interpreter meanwhile.

    Args:
        keep: how many bytes are kept before there is a thread.
    """

    def __init__(self, *, keep: int) -> None:
        self._hash = hashlib.sha256()
        self._kept: list[bytes] = []
        self._room = keep
        self._parts: queue.Queue[bytes | None] = queue.Queue(_PARTS)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sha256:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.clear()
        self._end()

    def update(self, data: bytes) -> None:
        if self._thread is not None:
            self._parts.put(data)
            return
        self._kept.append(data)
        self._room -= len(data)
        if self._room < 0:
            self._thread = threading.Thread(target=self._work, name="hvdcloud-sha256", daemon=True)
            self._thread.start()

    def text(self) -> str:
        """In hexadecimal; nothing is added after it."""
        self._end()
        return self._hash.hexdigest()

    def _end(self) -> None:
        if self._thread is not None:
            self._parts.put(None)
            self._thread.join()
            self._thread = None
        self._hash_kept()

    def _hash_kept(self) -> None:
        for part in self._kept:
            self._hash.update(part)
        self._kept = []

    def _work(self) -> None:
        self._hash_kept()
        while (part := self._parts.get()) is not None:
            self._hash.update(part)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksums:
    """What a file's bytes come to."""

    size: int
    crc32c: str
    sha256: str | None  # None: it was not asked for.


def checksums_of_file(path: Path, *, with_sha256: bool) -> Checksums:
    """Of what the file holds now, read once. Raises OSError: the file can't be read."""
    crc = Crc32c()
    with open_plain(path) as file, Sha256(keep=CHUNK) as sha:
        while data := file.read(CHUNK):
            crc.update(data)
            if with_sha256:
                sha.update(data)
        return Checksums(size=crc.size, crc32c=crc.text(), sha256=sha.text() if with_sha256 else None)
