"""A server that gets notices of runs, and answers as badly as servers do."""

from __future__ import annotations

import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.standins.http_server import Server, own_certificate

TOKEN = "T0PSECRET-a1b2c3"
"""In the path of every address, as in those of Slack: who knows it may send."""


@dataclass
class Webhook:
    """What it answers, and what it got."""

    certificate: Path
    """Its own, which nobody trusts who is not told to."""
    url: str = ""
    answers: list[int | str] = field(default_factory=list)
    """The next ones: a status, or `cut` (no answer), `hang`, `drip` (a byte now and then), `redirect`, `noise`. Then
    200."""
    got: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    """Path, headers in lower case and body of each request."""
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The bodies."""
        return [body for _, _, body in self.got]


@contextmanager
def webhook() -> Iterator[Webhook]:
    """A server with TLS on a loopback port for the block."""
    with tempfile.TemporaryDirectory() as folder:
        certificate, tls = own_certificate(Path(folder))
        with _serving(Webhook(certificate=certificate), tls) as hook:
            yield hook


@contextmanager
def _serving(hook: Webhook, tls: ssl.SSLContext) -> Iterator[Webhook]:

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            hook.got.append((self.path, headers, json.loads(body)))
            answer = hook.answers.pop(0) if hook.answers else 200
            self.close_connection = True
            if answer == "hang":
                hook.closing.wait()
            elif answer == "drip":
                with contextlib.suppress(OSError):
                    while not hook.closing.wait(0.05):
                        self.wfile.write(b"H")
            elif answer == "noise":
                self.wfile.write(b"\x00\xff SSH-2.0 \r\n\r\n")
            elif answer == "redirect":
                self.send_response(302)
                self.send_header("Location", f"{hook.url}/elsewhere")
                self.end_headers()
            elif isinstance(answer, int):
                self.send_response(answer)
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        hook.url = f"https://127.0.0.1:{server.server_port}/services/{TOKEN}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hook
        finally:
            hook.closing.set()
            server.shutdown()
            thread.join()
