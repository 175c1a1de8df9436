"""A bucket for measuring downloads: fast, made of bytes that are computed, with a latency per request and a rate per
connection. It speaks what gcloud, Google's Python client and our own reader ask for when they list and read.

`python -m tests.bench.object_server COUNT SIZE`: prints its URL, and serves until its standard input is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import bisect
import json
import os
import random
import re
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import google_crc32c

BUCKET = "bucket"
_BLOCK = 32 << 20
_PIECE = 1 << 20
_GENERATION = 1_700_000_000_000_000
_STEP = 4099
_PAGE = 1000
_MEDIA = re.compile(rb"GET [^ ?]*/o/([^ /?]+)\?(?:[^ ]*&)?alt=media[& ]")
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d+)-(\d*)", re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def names_of(count: int) -> list[str]:
    """Of that many objects."""
    return [f"set/{i // 1000:04}/object-{i:07}" for i in range(count)]


class Objects:
    """`count` objects of `size` bytes, each with bytes of its own."""

    def __init__(self, count: int, size: int) -> None:
        block = random.Random(7).randbytes(_BLOCK)
        self._twice = memoryview(block + block)
        self.size = size
        self.url = ""
        self.names = names_of(count)
        self._number = {name: i for i, name in enumerate(self.names)}
        self._crc = [""] * count
        self._pages: dict[str, bytes] = {}
        for number in range(count):
            value = 0
            for start in range(0, size, _PIECE):
                value = google_crc32c.extend(value, bytes(self.piece(number, start, min(_PIECE, size - start))))
            self._crc[number] = base64.b64encode(value.to_bytes(4, "big")).decode()

    def number(self, name: str) -> int | None:
        return self._number.get(name)

    def piece(self, number: int, start: int, length: int) -> memoryview:
        first = (number * _STEP + start) % _BLOCK
        return self._twice[first : first + length]

    def resource(self, number: int, *, brief: bool = False) -> dict[str, Any]:
        name = self.names[number]
        few = {"name": name, "size": str(self.size), "crc32c": self._crc[number], "generation": str(_GENERATION)}
        if brief:
            return few
        when = "2026-01-01T00:00:00.000Z"
        times = {
            "timeCreated": when,
            "updated": when,
            "storageClass": "STANDARD",
            "etag": "CAE=",
            "metageneration": "1",
        }
        kind = {"kind": "storage#object", "bucket": BUCKET, "contentType": "application/octet-stream"}
        # gcloud downloads from here.
        link = f"/download/storage/v1/b/{BUCKET}/o/{quote(name, safe='')}?generation={_GENERATION}&alt=media"
        return {**kind, "id": f"{BUCKET}/{name}/{_GENERATION}", **few, **times, "mediaLink": self.url + link}

    def headers(self, number: int) -> str:
        """Of an answer with the object's bytes."""
        return f"X-Goog-Generation: {_GENERATION}\r\nX-Goog-Hash: crc32c={self._crc[number]}\r\n"

    def described(self, target: str) -> tuple[int, bytes]:
        """Status and JSON for a request that asks for no object's bytes."""
        parts = urlsplit(target)
        segments = [unquote(each) for each in parts.path.strip("/").split("/")]
        if segments[-1:] == ["o"]:
            return 200, self.page({key: values[0] for key, values in parse_qs(parts.query).items()})
        if segments[-2:-1] == ["b"]:
            fields = {"name": BUCKET, "id": BUCKET, "location": "US", "storageClass": "STANDARD"}
            return 200, json.dumps({"kind": "storage#bucket", **fields}).encode()
        number = self.number(segments[-1])
        if number is None:
            return 404, json.dumps({"error": {"code": 404, "message": f"no {segments[-1]}"}}).encode()
        return 200, json.dumps(self.resource(number)).encode()

    def page(self, query: dict[str, str]) -> bytes:
        key = json.dumps(query, sort_keys=True)
        if key not in self._pages:
            self._pages[key] = json.dumps(self._page(query)).encode()
        return self._pages[key]

    def _page(self, query: dict[str, str]) -> dict[str, Any]:
        prefix = query.get("prefix", "")
        start, end = query.get("startOffset", ""), query.get("endOffset", "")
        # By bisection: to look at each name for each page would take longer than a client needs.
        low = bisect.bisect_left(self.names, max(prefix, start))
        high = bisect.bisect_left(self.names, min(prefix + chr(0x10FFFF), end or chr(0x10FFFF)))
        found: Sequence[int] = range(low, max(low, high))
        if (delimiter := query.get("delimiter")) and found:
            rest = {self.names[i][len(prefix) :].partition(delimiter) for i in found}
            folders = sorted({prefix + head + mark for head, mark, _ in rest if mark})
            found = [i for i in found if delimiter not in self.names[i][len(prefix) :]]
        else:
            folders = []
        first = int(query.get("pageToken", "0"))
        size = min(_PAGE, int(query.get("maxResults", _PAGE)))
        brief = "size" in query.get("fields", "")
        items = [self.resource(i, brief=brief) for i in found[first : first + size]]
        value: dict[str, Any] = {"kind": "storage#objects", "items": items}
        if folders:
            value["prefixes"] = folders
        if first + size < len(found):
            value["nextPageToken"] = str(first + size)
        return value


class Connection(asyncio.Protocol):
    """One connection; it costs little for each request, since the client has the same processors."""

    def __init__(self, objects: Objects, *, latency: float, rate: float) -> None:
        self._objects = objects
        self._latency = latency
        self._rate = rate
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._sending: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._sending is not None:
            self._sending.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, mark, rest = self._received.partition(b"\r\n\r\n")
        if not mark:
            return
        length = _LENGTH.search(head)
        if length and len(rest) < int(length[1]):
            return
        # No client sends a second request before it has this answer.
        self._received = b""
        self._loop.call_later(self._latency, self._answer, head)

    def _answer(self, head: bytes) -> None:
        if self._transport is None:
            return
        found = _MEDIA.match(head)
        number = self._objects.number(unquote(found[1].decode())) if found else None
        if number is None:
            status, body = self._objects.described(head.split(b" ", 2)[1].decode())
            self._transport.write(_head(status, len(body), "application/json") + body)
            return
        size = self._objects.size
        start, stop, status, extra = 0, size, 200, ""
        if span := _RANGE.search(head):
            start, stop, status = int(span[1]), min(size, int(span[2]) + 1 if span[2] else size), 206
            extra = f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n"
        answer = _head(status, stop - start, "application/octet-stream", extra + self._objects.headers(number))
        first = self._objects.piece(number, start, min(_PIECE, stop - start))
        self._transport.writelines((answer, first))
        if start + len(first) < stop:
            self._sending = self._loop.create_task(self._send(number, start, stop, sent=len(first)))

    async def _send(self, number: int, start: int, stop: int, *, sent: int) -> None:
        """What comes after the first piece, not faster than the rate."""
        began = self._loop.time()
        while start + sent < stop:
            await self._writable.wait()
            early = began + sent / self._rate - self._loop.time()
            if early > 0.002:
                await asyncio.sleep(early)
            if self._transport is None:
                return
            piece = self._objects.piece(number, start + sent, min(_PIECE, stop - start - sent))
            self._transport.write(piece)
            sent += len(piece)


def _head(status: int, length: int, kind: str, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{extra}\r\n".encode()


def main() -> int:
    """Serve from as many processes as there are cores."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.object_server", description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("--latency", type=float, default=0.01, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=100e6, help="bytes per second and connection")
    options = parser.parse_args()
    objects = Objects(options.count, options.size)
    held = _socket(0)
    port = held.getsockname()[1]
    objects.url = f"http://127.0.0.1:{port}"
    sockets = [_socket(port) for _ in range(os.cpu_count() or 1)]
    held.close()
    children = []
    for each in sockets:
        pid = os.fork()
        if pid == 0:
            asyncio.run(_serve(partial(Connection, objects, latency=options.latency, rate=options.rate), each))
        children.append(pid)
    sys.stdout.write(f"{objects.url}\n")
    sys.stdout.flush()
    sys.stdin.read()
    for pid in children:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return 0


def _socket(port: int) -> socket.socket:
    # With the protocol named, asyncio sends each write at once: else a body waits 40 ms for the head's acknowledgement.
    found = socket.socket(proto=socket.IPPROTO_TCP)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    found.bind(("127.0.0.1", port))
    if port:
        found.listen(1024)
    return found


async def _serve(connection: Callable[[], Connection], listening: socket.socket) -> None:
    made = await asyncio.get_running_loop().create_server(connection, sock=listening)
    await made.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
