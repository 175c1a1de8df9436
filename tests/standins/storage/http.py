"""The HTTP underneath: a request with its query and body, and the ways to answer it."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.standins.storage import fields
from tests.standins.storage.errors import ApiError, invalid

CHUNK = 1 << 20


class CutError(Exception):
    """The connection is to end here, or has ended."""


class Body:
    """What the client sends, never more than asked for in memory."""

    def __init__(self, handler: BaseHTTPRequestHandler, cut_after: int | None) -> None:
        if handler.headers.get("Transfer-Encoding"):
            raise ApiError(411, "lengthRequired", "send a Content-Length")
        self.length = int(handler.headers.get("Content-Length") or 0)
        self._left = self.length
        self._until_cut = cut_after
        self._handler = handler

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, or as many as are left."""
        size = min(size, self._left)
        if self._until_cut is not None and size >= self._until_cut:
            self._handler.rfile.read(self._until_cut)
            raise CutError
        data = self._handler.rfile.read(size)
        if len(data) < size:
            raise CutError
        self._left -= size
        if self._until_cut is not None:
            self._until_cut -= size
        return data

    def read_all(self, *, limit: int = 64 << 20) -> bytes:
        if self._left > limit:
            raise ApiError(413, "uploadTooLarge", f"more than {limit} bytes")
        return self.read(self._left)

    def readline(self) -> bytes:
        """One line, CRLF removed; for the headers inside a multipart body."""
        line = b""
        while not line.endswith(b"\r\n"):
            byte = self.read(1)
            if not byte or len(line) > 8192:
                raise invalid("a malformed multipart body")
            line += byte
        return line[:-2]

    @property
    def left(self) -> int:
        return self._left

    def drain(self) -> None:
        while self.read(CHUNK):
            pass


class Request:
    """One request, read strictly: a parameter that no handler reads is an error."""

    def __init__(self, handler: BaseHTTPRequestHandler, fault: dict[str, Any]) -> None:
        parts = urlsplit(handler.path)
        self.method = handler.command
        self.segments = [unquote(part, errors="strict") for part in parts.path.split("/")[1:]]
        self.headers = handler.headers
        self.fault = fault
        self.permit: Callable[[str, str, str], None] = lambda action, bucket, name: None
        """Ends the request where its token does not allow an action on an object of a bucket."""
        self.body = Body(handler, fault.get("after", 0) if fault.get("cut") == "request" else None)
        self._handler = handler
        raw = parse_qs(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        if any(len(values) != 1 for values in raw.values()):
            raise invalid("a query parameter is given twice")
        self.query = {key: values[0] for key, values in raw.items()}

    def allow(self, *names: str) -> None:
        """400 for a query parameter that is not one of these (or one that every method has)."""
        if unknown := set(self.query) - {"prettyPrint", "fields", "alt", *names}:
            raise ApiError(400, "invalidParameter", f"unknown query parameters: {', '.join(sorted(unknown))}")
        if self.query.get("alt", "json") not in ("json", "media"):
            raise invalid(f"alt={self.query['alt']}")

    def number(self, name: str, *, least: int = 0) -> int | None:
        if name not in self.query:
            return None
        text = self.query[name]
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise ApiError(400, "invalidParameter", f"{name}={text!r}")
        return int(text)

    def json(self) -> dict[str, Any]:
        return parse_json(self.body.read_all())

    # -- answers ---------------------------------------------------------------------------------------------------

    def answer(self, value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> None:
        if self.query.get("fields"):
            value = fields.select(value, fields.parse(self.query["fields"]))
        self.answer_bytes(json.dumps(value).encode(), status=status, kind="application/json", headers=headers)

    def answer_bytes(
        self, data: bytes, *, status: int, kind: str = "application/json", headers: dict[str, str] | None = None
    ) -> None:
        # The client is still sending: take the rest, or it sees a broken connection instead of the answer.
        self.body.drain()
        self.start(status, length=len(data), kind=kind, headers=headers)
        self.send(data)

    def start(self, status: int, *, length: int, kind: str, headers: dict[str, str] | None = None) -> None:
        if self.fault.get("cut") == "effect":
            raise CutError
        self._handler.send_response(status)
        if status not in (204, 304):
            self._handler.send_header("Content-Type", kind)
            self._handler.send_header("Content-Length", str(length))
        for key, value in (headers or {}).items():
            self._handler.send_header(key, value)
        self._handler.end_headers()

    def send(self, data: bytes) -> None:
        if self.fault.get("cut") == "response":
            self._handler.wfile.write(data[: self.fault["after"]])
            raise CutError
        self._handler.wfile.write(data)

    def send_file(self, descriptor: int, *, offset: int, length: int) -> None:
        with open(descriptor, "rb", closefd=False) as file:
            if not self.fault:
                self._handler.wfile.flush()
                if length:
                    self._handler.connection.sendfile(file, offset, length)
                return
            file.seek(offset)
            left = length
            until_cut = self.fault["after"] if self.fault.get("cut") == "response" else None
            while left:
                data = file.read(min(CHUNK, left))
                if until_cut is not None and len(data) >= until_cut:
                    self._handler.wfile.write(data[:until_cut])
                    raise CutError
                if until_cut is not None:
                    until_cut -= len(data)
                    self._handler.wfile.write(data)
                else:
                    self.send(data)
                left -= len(data)

    def cut(self) -> None:
        """End the connection in the middle of a request or an answer."""
        self._handler.close_connection = True
        with contextlib.suppress(OSError):
            self._handler.connection.shutdown(socket.SHUT_RDWR)


def parse_json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data or b"{}")
    except ValueError:
        raise ApiError(400, "parseError", "the body is not JSON") from None
    if not isinstance(value, dict):
        raise ApiError(400, "parseError", "the body is not a JSON object")
    return value
