"""The least that a client takes: receives all bytes over plain sockets and throws them away, with almost no work for
each request. What it needs is the server's time, and shows whether the server is what limits the others."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Iterator, Sequence
from urllib.parse import quote, urlsplit

CONNECTIONS = 128
_RANGE = 16 << 20


def receive_all(url: str, names: Sequence[str], size: int) -> int:
    """Get every object of `size` bytes, in ranges, over CONNECTIONS connections. Returns how many bytes came."""
    parts = urlsplit(url)
    requests = _requests(names, size)
    view = memoryview(bytearray(1 << 18))
    total = at_work = 0
    with selectors.DefaultSelector() as selector:
        for (request, length), _ in zip(requests, range(CONNECTIONS), strict=False):
            wire = socket.create_connection((parts.hostname or "", parts.port or 80))
            wire.sendall(request)
            selector.register(wire, selectors.EVENT_READ, _Answer(length))
            at_work += 1
        while at_work:
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                wire, answer = key.fileobj, key.data
                total += answer.take(view, wire.recv_into(view))
                if answer.left:
                    continue
                following = next(requests, None)
                if following is None:
                    selector.unregister(wire)
                    wire.close()
                    at_work -= 1
                else:
                    wire.sendall(following[0])
                    selector.modify(wire, selectors.EVENT_READ, _Answer(following[1]))
    return total


class _Answer:
    """What of an answer has still to come."""

    def __init__(self, length: int) -> None:
        self.left = length
        self._has_head = False

    def take(self, view: memoryview, count: int) -> int:
        """How many of the bytes received are the object's."""
        if not count:
            raise ConnectionError("the server closed the connection")
        if not self._has_head:
            # This server sends a head at once.
            end = bytes(view[: min(count, 4096)]).index(b"\r\n\r\n") + 4
            count, self._has_head = count - end, True
        self.left -= count
        return count


def _requests(names: Sequence[str], size: int) -> Iterator[tuple[bytes, int]]:
    for name in names:
        target = f"/download/storage/v1/b/bucket/o/{quote(name, safe='')}?alt=media"
        for start in range(0, size, _RANGE):
            length = min(_RANGE, size - start)
            span = f"Range: bytes={start}-{start + length - 1}\r\n"
            yield f"GET {target} HTTP/1.1\r\nHost: bucket\r\n{span}\r\n".encode(), length
