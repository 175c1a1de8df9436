"""One kept-alive HTTP/1.1 connection for GET requests, with little work for each: where a hundred thousand small
objects are read, http.client's parser of headers takes longer than the bytes."""

from __future__ import annotations

import functools
import http.client
import os
import re
import socket
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

PIECE = 256 << 10
"""Bytes that are handed on at a time, at most; each connection has one piece in memory."""
_HEAD = 64 << 10
"""Bytes of an answer's head at most."""
_USUAL_HEAD = 2 << 10
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
_HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{1,15}")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})[ \r]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Of an answer.

    Attributes:
        length: bytes of the body; None: it is chunked.
        closes: the server closes the connection after the body.
    """

    status: int
    length: int | None
    closes: bool


def parsed_head(head: bytes) -> Head:
    """Of the bytes before an answer's first empty line, with the line break of the last one. Raises ConnectionError:
    they are not HTTP."""
    status = _STATUS.match(head)
    if status is None:
        raise ConnectionError("the answer is not HTTP")
    chunked = _CHUNKED.search(head) is not None
    length = _LENGTH.search(head)
    # A body without either ends with the connection; Cloud Storage has none such.
    if length is None and not chunked and status[1] not in (b"204", b"304"):
        raise ConnectionError("the answer has no length")
    size = None if chunked else int(length[1]) if length else 0
    closes = head.startswith(b"HTTP/1.0") or _CLOSE.search(head) is not None
    return Head(status=int(status[1]), length=size, closes=closes)


def request_bytes(target: str, authority: str, headers: Mapping[str, str]) -> bytes:
    """A GET request. Raises ValueError: it has a line break."""
    lines = (f"GET {target} HTTP/1.1", f"Host: {authority}", *(f"{k}: {v}" for k, v in headers.items()))
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a line break in a request")
    return f"{text}\r\n\r\n".encode("ascii")


def connected(url: str, *, seconds: float) -> socket.socket:
    """A connection to the server of an `http://` or `https://` URL, through a proxy where the environment names one.

    Args:
        seconds: to connect in.

    Raises OSError.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    tls, own_host, own_port, tunnel = parts.scheme == "https", host, port, False
    proxy = urllib.request.getproxies().get("https") if tls else None
    if proxy and not urllib.request.proxy_bypass(own_host):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
        host, port, tunnel = parts.hostname or "", parts.port or 3128, True
    # Connecting is http.client's: with TLS, and through a proxy.
    opener: http.client.HTTPConnection
    if tls:
        opener = http.client.HTTPSConnection(host, port, timeout=seconds, context=_tls_context())
    else:
        opener = http.client.HTTPConnection(host, port, timeout=seconds)
    if tunnel:
        opener.set_tunnel(own_host, own_port)
    opener.connect()
    found: socket.socket = opener.sock
    return found


class Connection:
    """A connection to one server; not for several threads. It connects when it is needed, also again after a failure.

    Args:
        url: `https://HOST[:PORT]`, or `http://…`.
        timeouts: seconds to connect, and to wait for the next bytes.
    """

    def __init__(self, url: str, *, timeouts: tuple[float, float]) -> None:
        self._url = url
        self._authority = urlsplit(url).netloc
        self._timeouts = timeouts
        self._socket: socket.socket | None = None
        self._buffer = b""
        self._left = 0
        self._chunked = self._close_after = False

    @property
    def is_open(self) -> bool:
        """Whether a request would use a connection that was used before, which the server may have closed meanwhile."""
        return self._socket is not None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._buffer = None, b""

    def get(self, target: str, headers: Mapping[str, str], *, expected: int = PIECE) -> int:
        """Ask; returns the status. `body` has to be read to its end, or the connection closed.

        Args:
            expected: bytes of the body. Memory for them is asked for, and a large piece of it for each small object
                takes more time than the object's bytes.

        Raises OSError: as the network says, or the answer is not HTTP.
        """
        request = request_bytes(target, self._authority, headers)
        if self._socket is None:
            connect, read = self._timeouts
            self._buffer = b""
            self._socket = connected(self._url, seconds=connect)
            self._socket.settimeout(read)
        wire = self._socket
        wire.sendall(request)
        data = self._buffer
        while (end := data.find(b"\r\n\r\n")) < 0:
            more = wire.recv(min(PIECE, _USUAL_HEAD + expected))
            if not more or len(data) > _HEAD:
                raise ConnectionError("the server closed the connection" if not more else "the answer is not HTTP")
            data += more
        head = parsed_head(data[: end + 2])
        self._buffer = data[end + 4 :]
        self._chunked, self._left, self._close_after = head.length is None, head.length or 0, head.closes
        return head.status

    def body(self) -> Iterator[bytes]:
        """The answer's bytes, at most PIECE at a time. Raises OSError: it was cut."""
        if self._chunked:
            while size := self._line().partition(b";")[0].strip().lstrip(b"0"):
                if not _HEXADECIMAL.fullmatch(size):
                    raise ConnectionError("the answer is not HTTP")
                self._left = int(size, 16)
                yield from self._bytes()
                self._line()
            while self._line():
                continue
        else:
            yield from self._bytes()
        if self._close_after:
            self.close()

    def _bytes(self) -> Iterator[bytes]:
        while self._left:
            if self._buffer:
                piece, self._buffer = self._buffer[: self._left], self._buffer[self._left :]
            else:
                piece = self._receive(min(PIECE, self._left))
            self._left -= len(piece)
            yield piece

    def _line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > _HEAD:
                raise ConnectionError("the answer is not HTTP")
            self._buffer += self._receive(PIECE)
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(size)
        if not data:
            raise ConnectionError("the connection was cut in the middle of an answer")
        return data


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """The authorities that Google's own client trusts."""
    import certifi

    given = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    return ssl.create_default_context(cafile=given or certifi.where())
