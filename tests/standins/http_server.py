"""The HTTP server of the stand-ins."""

from __future__ import annotations

import ssl
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Server(ThreadingHTTPServer):
    """Answers each connection in a thread of its own. That a client goes away is no error: some tests kill theirs."""

    # Clients connect many times at once; what is over that number waits for a second.
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where this machine reaches it."""
        host = str(self.server_address[0])
        return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self.server_port}"

    def start(self) -> None:
        """Answer, on a thread of its own, until `stop`."""
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Answer nothing any more; returns when the port is free."""
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    """Keeps connections, as the servers do that it stands for."""

    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; Nagle's algorithm would hold the second for the client's delayed ACK.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: what was asked is recorded elsewhere, where anybody wants to know."""


def own_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of 127.0.0.1 that nobody trusts who is not told to, and what a server needs of it."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    # uv takes no authority's own for a server's.
    words = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -addext"
    command = [*words.split(), "basicConstraints=critical,CA:FALSE", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    return certificate, tls
