"""A stand-in of Identity-Aware Proxy's TCP forwarding: what `gcloud compute start-iap-tunnel` talks to.

WebSocket (RFC 6455) over TLS, with binary frames of a tag and what belongs to it: the session's id, data, and how many
bytes were received. The protocol is read from gcloud's own source (iap_tunnel_websocket.py and
iap_tunnel_websocket_utils.py in googlecloudsdk/api_lib/compute); close codes are the ones that its messages quote. A
connection is not resumed here.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import socket
import ssl
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.standins.http_server import Server

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_SUBPROTOCOL = "relay.tunnel.cloudproxy.app"
_BINARY, _CLOSE = 2, 8
_CONNECTED, _DATA, _ACK = 1, 4, 7
_MOST_DATA = 16384

Place = tuple[str, int]


class RefusedError(Exception):
    """The tunnel is closed with this code and reason: 4003 nothing answers there, 4033 not authorized."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Tunnel:
    """One tunnel: frames on this side, a TCP connection on the other."""

    def __init__(self, reader: Any, client: socket.socket) -> None:
        self._reader = reader
        self._client = client
        self._sending = threading.Lock()

    def run(self, connect: Callable[[], socket.socket]) -> None:
        """Carry bytes both ways until one side ends."""
        try:
            backend = connect()
        except RefusedError as refusal:
            self._close(refusal.code, refusal.reason)
            return
        except OSError:
            self._close(4003, "failed to connect to backend")
            return
        sid = secrets.token_bytes(16)
        self._send(_BINARY, struct.pack(">HI", _CONNECTED, len(sid)) + sid)
        back = threading.Thread(target=self._from_backend, args=(backend,), daemon=True)
        back.start()
        self._to_backend(backend)
        with contextlib.suppress(OSError):  # It may have ended first.
            backend.shutdown(socket.SHUT_RDWR)
        back.join()
        backend.close()

    def _to_backend(self, backend: socket.socket) -> None:
        received = 0
        while (frame := self._receive()) is not None and frame[0] != _CLOSE:
            tag, data = struct.unpack(">H", frame[1][:2])[0], frame[1][2:]
            if tag == _DATA:
                (size,) = struct.unpack(">I", data[:4])
                assert size == len(data) - 4 <= _MOST_DATA
                backend.sendall(data[4:])
                received += size
                self._send(_BINARY, struct.pack(">HQ", _ACK, received))

    def _from_backend(self, backend: socket.socket) -> None:
        with contextlib.suppress(OSError):  # Either side has gone.
            while data := backend.recv(_MOST_DATA):
                self._send(_BINARY, struct.pack(">HI", _DATA, len(data)) + data)
            self._close(1000, "")

    def _receive(self) -> tuple[int, bytes] | None:
        """A frame's opcode and payload; None at the end of the connection."""
        head = self._reader.read(2)
        if len(head) < 2:
            return None
        size = head[1] & 0x7F
        if size >= 126:
            size = int.from_bytes(self._reader.read(2 if size == 126 else 8), "big")
        assert head[1] & 0x80, "a client masks what it sends"
        mask = self._reader.read(4)
        data = self._reader.read(size)
        key = (mask * (size // 4 + 1))[:size]
        return head[0] & 0x0F, (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(size, "big")

    def _send(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        length = bytes([size]) if size < 126 else b"\x7e" + struct.pack(">H", size)
        with self._sending:
            self._client.sendall(bytes([0x80 | opcode]) + length + payload)

    def _close(self, code: int, reason: str) -> None:
        self._send(_CLOSE, struct.pack(">H", code) + reason.encode())


@contextlib.contextmanager
def relaying(backend: Callable[[Mapping[str, str], str], Place]) -> Iterator[str]:
    """A relay for the block; yields its URL for `--iap-tunnel-url-override`.

    Args:
        backend: says where a tunnel leads, by the parameters of its URL (`project`, `zone`, `instance`, `interface`,
            `port`) and the client's token; raises RefusedError.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            kind, _, token = (self.headers.get("Authorization") or "").partition(" ")
            if url.path != "/v4/connect" or self.headers.get("Sec-WebSocket-Protocol") != _SUBPROTOCOL:
                self.send_error(404)
                return
            if kind != "Bearer":
                self.send_error(401)
                return
            key = self.headers["Sec-WebSocket-Key"] + _MAGIC
            self.send_response(101)
            self.send_header("Upgrade", "websocket")
            self.send_header("Connection", "Upgrade")
            self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
            self.send_header("Sec-WebSocket-Protocol", _SUBPROTOCOL)
            self.end_headers()
            asked = dict(parse_qsl(url.query))
            Tunnel(self.rfile, self.connection).run(lambda: socket.create_connection(backend(asked, token), 5))
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = _tls().wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"wss://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _tls() -> ssl.SSLContext:
    """With a certificate that nobody signed: gcloud speaks to nothing without TLS, and can be told not to check it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "relay")])
    now = datetime.now(timezone.utc)
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    signed = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "relay.pem"
        pem = serialization.Encoding.PEM
        file.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + signed.sign(key, hashes.SHA256()).public_bytes(pem)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
    return context
