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
import socket
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import google_crc32c

BUCKET = "bucket"
_BLOCK = 32 << 20
_PIECE = 1 << 20
_GENERATION = 1_700_000_000_000_000
_STEP = 4099
_PAGE = 1000


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


class Server:
    """One process's share of the connections."""

    def __init__(self, objects: Objects, *, latency: float, rate: float) -> None:
        self._objects = objects
        self._latency = latency
        self._rate = rate

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode("latin-1").split("\r\n")
                headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
                if length := int(headers.get("content-length", "0")):
                    await reader.readexactly(length)
                await asyncio.sleep(self._latency)
                await self._answer(first.split(" ")[1], headers, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()

    async def _answer(self, target: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        segments = [unquote(each) for each in parts.path.strip("/").split("/")]
        media = query.get("alt") == "media"
        if segments[-1:] == ["o"]:
            return await _send(writer, 200, self._objects.page(query))
        if segments[-2:-1] == ["b"]:
            value = {
                "kind": "storage#bucket",
                "name": BUCKET,
                "id": BUCKET,
                "location": "US",
                "storageClass": "STANDARD",
            }
            return await _send(writer, 200, json.dumps(value).encode())
        number = self._objects.number(segments[-1])
        if number is None:
            missing = {"error": {"code": 404, "message": f"no {segments[-1]}"}}
            return await _send(writer, 404, json.dumps(missing).encode())
        if not media:
            return await _send(writer, 200, json.dumps(self._objects.resource(number)).encode())
        size = self._objects.size
        start, stop, status = 0, size, 200
        if span := headers.get("range", "").removeprefix("bytes="):
            low, _, high = span.partition("-")
            start, stop, status = int(low), min(size, int(high) + 1 if high else size), 206
        extra = f"Content-Range: bytes {start}-{stop - 1}/{size}\r\n" if status == 206 else ""
        crc = self._objects.resource(number, brief=True)["crc32c"]
        extra += f"X-Goog-Generation: {_GENERATION}\r\nX-Goog-Hash: crc32c={crc}\r\n"
        kind = "application/octet-stream"
        writer.write(_head(status, stop - start, kind, extra))
        clock = asyncio.get_running_loop().time
        began, sent = clock(), 0
        while start < stop:
            piece = self._objects.piece(number, start, min(_PIECE, stop - start))
            writer.write(piece)
            await writer.drain()
            start += len(piece)
            sent += len(piece)
            early = began + sent / self._rate - clock()
            if early > 0.002 and start < stop:
                await asyncio.sleep(early)
        return None


def _head(status: int, length: int, kind: str, extra: str = "") -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{extra}\r\n".encode()


async def _send(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(_head(status, len(body), "application/json") + body)
    await writer.drain()


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
            server = Server(objects, latency=options.latency, rate=options.rate)
            asyncio.run(_serve(server, each))
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


async def _serve(server: Server, listening: socket.socket) -> None:
    made = await asyncio.start_server(server.serve, sock=listening, limit=1 << 20)
    await made.serve_forever()


if __name__ == "__main__":
    sys.exit(main())
