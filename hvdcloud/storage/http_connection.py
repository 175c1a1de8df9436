"""GET requests over HTTP/1.1 connections that are kept alive.

`Connection` is http.client's. Where a hundred thousand small objects are read, its parser of headers takes longer than
the bytes: for those (node/data/small_objects.py) there are a request and an answer's head with little work for each.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import re
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

PIECE = 256 << 10
"""Bytes that are handed on at a time, at most; each connection has one piece in memory."""
_CUT = "the connection was cut in the middle of an answer"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
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
    length = None
    if not _CHUNKED.search(head):
        # A body without either ends with the connection; Cloud Storage has none such.
        length = _LENGTH.search(head)
        if length is None:
            raise ConnectionError("the answer has no length")
    closes = head.startswith(b"HTTP/1.0") or _CLOSE.search(head) is not None
    return Head(status=int(status[1]), length=int(length[1]) if length else None, closes=closes)


def request_bytes(target: str, authority: str, headers: Mapping[str, str]) -> bytes:
    """A GET request. Raises ValueError: it has a line break."""
    lines = (f"GET {target} HTTP/1.1", f"Host: {authority}", *(f"{k}: {v}" for k, v in headers.items()))
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a line break in a request")
    return f"{text}\r\n\r\n".encode("ascii")


def opened(url: str, *, seconds: float) -> http.client.HTTPConnection:
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
    connection: http.client.HTTPConnection
    if tls:
        connection = http.client.HTTPSConnection(host, port, timeout=seconds, context=_tls_context())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=seconds)
    if tunnel:
        connection.set_tunnel(own_host, own_port)
    with _http_errors():
        connection.connect()
    return connection


class Connection:
    """A kept-alive connection to one server; not for several threads. It connects when it is needed, also again after a
    failure.

    Args:
        url: `https://HOST[:PORT]`, or `http://…`.
        timeouts: seconds to connect, and to wait for the next bytes.
    """

    def __init__(self, url: str, *, timeouts: tuple[float, float]) -> None:
        self._url = url
        self._timeouts = timeouts
        self._connection: http.client.HTTPConnection | None = None
        self._answer: http.client.HTTPResponse | None = None

    @property
    def is_open(self) -> bool:
        """Whether a request would use a connection that was used before, which the server may have closed meanwhile."""
        return self._connection is not None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._answer = None

    def get(self, target: str, headers: Mapping[str, str]) -> int:
        """Ask; returns the status. `body` has to be read to its end, or the connection closed.

        Raises OSError: as the network says, or the answer is not HTTP.
        """
        if self._connection is None:
            connect, read = self._timeouts
            self._connection = opened(self._url, seconds=connect)
            self._connection.sock.settimeout(read)
        with _http_errors():
            self._connection.request("GET", target, headers=dict(headers))
            self._answer = self._connection.getresponse()
        return self._answer.status

    def body(self) -> Iterator[bytes]:
        """The answer's bytes, at most PIECE at a time. Raises OSError: it was cut."""
        answer = self._answer
        assert answer is not None
        with _http_errors():
            while piece := answer.read(PIECE):
                yield piece
        if answer.length:
            raise ConnectionError(_CUT)
        if answer.will_close:
            self.close()


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    try:
        yield
    except http.client.RemoteDisconnected:
        raise
    except http.client.HTTPException as error:
        why = _CUT if isinstance(error, http.client.IncompleteRead) else "the answer is not HTTP"
        raise ConnectionError(why) from error


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """The authorities that Google's own client trusts."""
    import certifi

    given = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    return ssl.create_default_context(cafile=given or certifi.where())
