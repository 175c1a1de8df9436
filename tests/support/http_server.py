"""A small HTTP server for tests that say what it answers."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.standins.http_server import Server


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    query: str
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What it is answered with."""

    content: Any = b""
    """Bytes as they are; anything else as JSON."""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def answering(
    answer: Callable[[Asked], Reply | None],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> Iterator[str]:
    """A server for the block; yields its URL, without a slash at the end.

    Args:
        answer: called from many threads; None cuts the connection.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.serve()

        def serve(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            reply = answer(Asked(self.command, url.path, url.query, self.headers, body))
            if reply is None:
                self.close_connection = True
                return
            as_json = not isinstance(reply.content, bytes)
            content = json.dumps(reply.content).encode() if as_json else reply.content
            self.send_response(reply.status)
            if as_json:
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = serve

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = Server((host, port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.start()
    try:
        yield f"{'https' if tls else 'http'}://{host}:{server.server_port}"
    finally:
        server.stop()
