"""CRC32C, written as Cloud Storage writes it: the base64 of four bytes, big-endian. It finds damage, and SHA-256 finds
intent: for any bytes others with the same CRC32C are easily made."""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import queue
import stat
import threading
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import TracebackType

import google_crc32c

# Large enough that system calls don't count, small enough that a dozen threads cost nothing.
CHUNK = 1 << 20
# Parts of that size that may wait for SHA-256.
AHEAD = 32


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


class Sha256:
    """A running SHA-256 that is computed in a thread of its own from the second part on: it is the slowest thing that
    happens to a byte on its way, and hashlib frees the interpreter meanwhile.

    Args:
        ahead: how many parts may wait to be hashed.
    """

    def __init__(self, *, ahead: int) -> None:
        self._hash = hashlib.sha256()
        self._first: bytes | None = None
        self._parts: queue.Queue[bytes | None] = queue.Queue(ahead)
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Sha256:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def update(self, data: bytes) -> None:
        if self._thread is None and self._first is None:
            self._first = data
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="hvdcloud-sha256", daemon=True)
            self._thread.start()
        self._parts.put(data)

    def text(self) -> str:
        """In hexadecimal; nothing is added after it."""
        self._end()
        return self._hash.hexdigest()

    def _end(self) -> None:
        if self._thread is not None:
            self._parts.put(None)
            self._thread.join()
            self._thread = None
        elif self._first is not None:
            self._hash.update(self._first)
        self._first = None

    def _work(self) -> None:
        part = self._first
        while part is not None:
            self._hash.update(part)
            part = self._parts.get()


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
    with open_plain(path) as file, Sha256(ahead=AHEAD) as sha:
        while data := file.read(CHUNK):
            crc.update(data)
            if with_sha256:
                sha.update(data)
        return Checksums(size=crc.size, crc32c=crc.text(), sha256=sha.text() if with_sha256 else None)
