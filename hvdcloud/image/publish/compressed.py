"""A stream as gzip, compressed as far as the connection is slower than a processor here.

A gzip file may be a sequence of gzip files, so that each block is compressed or only wrapped, as is faster at that
time: compressing takes 10 ns a byte, which is a tenth of what a byte takes through an office's gateway, and five times
what it takes to a machine in the same rack.
"""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

BLOCK_BYTES = 1 << 20
_ENOUGH_BYTES = 64 << 10
# What is compressed ahead of the connection.
_AHEAD = 8
_THREADS = min(4, os.cpu_count() or 1)
# As much as a connection's buffers swallow at once says nothing about its speed, nor does an engine that only begins.
_WINDOW_BYTES, _FIRST_BYTES = 16 << 20, 4 << 20
# The engine that packs, ssh and what is compressed for other hosts need processors as well.
_PRICE = 2
# Less than a tenth of the time is not worth it.
_WORTH = 0.9
# What an engine needs for a byte at least, until it is known: 15 ns were measured.
_UNPACK_SECONDS = 5e-9
# What is not compressed is tried again from time to time: other content may compress better.
_TRY_EVERY = 64


@dataclass(slots=True)
class Pace:
    """What is known of the connection and of compressing, in seconds a byte."""

    wire: float = 0.0
    """To send a byte as it is sent; 0: not known yet."""
    compress: float = 0.0
    """Of a processor, to compress a byte; 0: not known yet."""
    stretch: float = 1.0
    """How many times as long it takes until it has been compressed, because others need the processors as well."""
    ratio: float = 1.0
    """Bytes that are left of one."""
    unpack: float = _UNPACK_SECONDS
    """For which the other side is busy with a byte, while it takes the next ones."""

    def pays(self) -> bool:
        """Whether the other side is done with a block earlier if it is compressed."""
        if not self.wire or not self.compress:
            return False
        return max(self._price(), self.ratio * self.wire, self.unpack) < _WORTH * self.wire

    def is_fast(self) -> bool:
        """Whether not even a block of which nothing is left would pay."""
        return bool(self.wire) and max(self._price(), self.unpack) >= _WORTH * self.wire

    def _price(self) -> float:
        """Of a compressed byte: where processors are busy, a connection looks slow as well, and all would be slower."""
        return _PRICE * self.compress * self.stretch**2

    def sent(self, count: int, seconds: float) -> None:
        """Remember that the connection took `count` bytes in `seconds`; the last ones count most."""
        share = min(1.0, count / _WINDOW_BYTES)
        self.wire = (1 - share) * self.wire + share * seconds / count if self.wire else seconds / count

    def unpacked(self, count: int, seconds: float) -> None:
        """Remember that the other side had unpacked `count` bytes after `seconds`; few bytes say little."""
        if count >= _WINDOW_BYTES:
            self.unpack = seconds / count

    def compressed(self, before: int, after: int, seconds: float, busy: float) -> None:
        """Remember that a thread made `after` bytes of `before` in `seconds`, for which it had a processor `busy`."""
        self.compress, self.ratio = busy / before, after / before
        self.stretch = max(1.0, seconds / busy) if busy else 1.0


def compressed(chunks: Iterable[bytes], pace: Pace) -> Iterator[bytes]:
    """The chunks as a gzip stream, or, where the connection is fast, as they are: even to wrap a byte takes 2.5 ns.

    Args:
        pace: of the connection that takes it; kept up to date.
    """
    members = _plain(chunks, pace) if pace.is_fast() else _members(chunks, pace)
    total = 0
    for member in members:
        began = time.monotonic()
        yield member
        total += len(member)
        if total > _FIRST_BYTES:
            pace.sent(len(member), time.monotonic() - began)


def _plain(chunks: Iterable[bytes], pace: Pace) -> Iterator[bytes]:
    """The chunks as they are; one is compressed from time to time to know for the next portion what that takes."""
    # An empty one would end a chunked request.
    for number, chunk in enumerate(filter(None, chunks)):
        if number % _TRY_EVERY == _TRY_EVERY - 1:
            _member(chunk, pace, compress=True)
        yield chunk


def _members(chunks: Iterable[bytes], pace: Pace) -> Iterator[bytes]:
    """The chunks as gzip files."""
    with ThreadPoolExecutor(max_workers=_THREADS) as pool:
        waiting: deque[Future[bytes]] = deque()
        for number, block in enumerate(_blocks(chunks)):
            compress = pace.pays() or number % _TRY_EVERY == 0
            waiting.append(pool.submit(_member, block, pace, compress=compress))
            if len(waiting) >= _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _member(block: bytes, pace: Pace, *, compress: bool) -> bytes:
    began, began_busy = time.monotonic(), time.thread_time()
    deflate = zlib.compressobj(1 if compress else 0, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    member = deflate.compress(block) + deflate.flush()
    # Small ones say little: a tar file's headers and its end.
    if compress and len(block) >= _ENOUGH_BYTES:
        pace.compressed(len(block), len(member), time.monotonic() - began, time.thread_time() - began_busy)
    return member


def _blocks(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The chunks, cut and joined to blocks; the last may be shorter."""
    parts: list[bytes] = []
    room = BLOCK_BYTES
    for chunk in chunks:
        rest = memoryview(chunk)
        while len(rest) >= room:
            parts.append(bytes(rest[:room]))
            yield b"".join(parts)
            rest, parts, room = rest[room:], [], BLOCK_BYTES
        if rest:
            parts.append(bytes(rest))
            room -= len(rest)
    if parts:
        yield b"".join(parts)
