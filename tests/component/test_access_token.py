"""The token that the fetcher of data sets asks Google for, by a service account's file and a token server here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from hvdcloud.storage.access_token import AccessToken


class TokenServer(ThreadingHTTPServer):
    asked = 0


class _Handler(BaseHTTPRequestHandler):
    server: TokenServer

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        body = json.dumps({"access_token": f"token-{self.server.asked}", "expires_in": 3600}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def server() -> Iterator[TokenServer]:
    with TokenServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(params=["UTC0", "CET-1CEST,M3.5.0,M10.5.0/3", "AEST-10AEDT,M10.1.0,M4.1.0/3"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One of the last two has summer time, whenever this runs."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("_zone")
def test_a_token_of_an_hour_is_asked_for_once_in_every_time_zone(server: TokenServer, tmp_path: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = {
        "type": "service_account",
        "client_email": "nodes@project.iam.gserviceaccount.com",
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
    }
    file = tmp_path / "account.json"
    file.write_text(json.dumps(account))
    token = AccessToken(file, anonymous=False)
    assert token.header() == {"Authorization": "Bearer token-1"}
    time.sleep(1.5)
    assert token.header() == {"Authorization": "Bearer token-1"}
    assert token.refused({"Authorization": "Bearer token-1"})
    assert token.header() == {"Authorization": "Bearer token-2"}
