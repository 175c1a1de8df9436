"""`python -m tests.bench.gce.floor ENDPOINT BODY.json`: the least that it takes to make VMs and to delete them.

Plain HTTP with nothing of hvdcloud or Google's library in between: one bulkInsert, one `wait` for its operation, the
last VM's status every 10 ms and then everybody's in one batch; deletions side by side, and a list until it is empty.
No quotas are looked at, no firewall rules are made, nothing is tried again.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tests.bench.gce import PROJECT, ZONE, mark

POLL_SECONDS = 0.01
WORKERS = 32
"""As many as hvdcloud has."""
BASE = f"/compute/v1/projects/{PROJECT}/zones/{ZONE}"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class Api:
    """One connection for each thread."""

    def __init__(self, endpoint: str) -> None:
        self._address = urlsplit(endpoint).netloc
        self._authorization = f"Bearer {_token()}"
        self._local = threading.local()

    def call(
        self, http: str, path: str, body: bytes | None = None, kind: str = "application/json"
    ) -> tuple[int, bytes]:
        if not hasattr(self._local, "connection"):
            self._local.connection = HTTPConnection(self._address, timeout=150)
        headers = {"Authorization": self._authorization, "Content-Type": kind}
        self._local.connection.request(http, path, body=body, headers=headers)
        answer = self._local.connection.getresponse()
        return answer.status, answer.read()

    def json(self, http: str, path: str, body: Any = None) -> dict[str, Any]:
        status, content = self.call(http, path, None if body is None else json.dumps(body).encode())
        assert status == 200, content
        answer: dict[str, Any] = json.loads(content)
        return answer


def main(endpoint: str, file: Path) -> None:
    body = json.loads(file.read_text())
    names = list(body["perInstanceProperties"])
    api = Api(endpoint)
    mark("begin")
    operation = api.json("POST", f"{BASE}/instances/bulkInsert", body)
    done = api.json("POST", f"{BASE}/operations/{operation['name']}/wait")
    assert done["status"] == "DONE", done
    assert "error" not in done, done
    mark("created")
    while b"host_key" not in api.call("GET", _status(names[-1]))[1]:
        time.sleep(POLL_SECONDS)
    while _ready(api, names) < len(names):
        time.sleep(POLL_SECONDS)
    mark("up")
    with ThreadPoolExecutor(WORKERS) as pool:
        last = list(pool.map(lambda name: api.json("DELETE", f"{BASE}/instances/{name}"), names))[-1]
    api.json("POST", f"{BASE}/operations/{last['name']}/wait")
    while "items" in api.json("GET", f"{BASE}/instances"):
        time.sleep(POLL_SECONDS)
    mark("down")


def _status(name: str) -> str:
    return f"{BASE}/instances/{name}/getGuestAttributes?queryPath={quote('hvdcloud/', safe='')}"


def _ready(api: Api, names: list[str]) -> int:
    """How many are."""
    parts = [f"--b\r\nContent-Type: application/http\r\n\r\nGET {_status(name)} HTTP/1.1\r\n\r\n\r\n" for name in names]
    body = "".join([*parts, "--b--\r\n"]).encode()
    status, answer = api.call("POST", "/batch/compute/v1", body, "multipart/mixed; boundary=b")
    assert status == 200, answer
    return answer.count(b"host_key")


def _token() -> str:
    import google.auth
    from google.auth.transport.requests import Request

    credentials, _ = google.auth.default(scopes=[SCOPE])
    credentials.refresh(Request())
    return str(credentials.token)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
