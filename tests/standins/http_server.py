"""The HTTP server of the stand-ins."""

from __future__ import annotations

import ssl
import subprocess
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Server(ThreadingHTTPServer):
    """Answers each connection in a thread of its own. That a client goes away is no error: some tests kill theirs."""

    # Clients connect many times at once; what is over that number waits for a second.
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


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
