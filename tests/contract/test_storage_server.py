"""The stand-in is as strict as it says: asked over plain HTTP, without Google's library in between."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.standins.storage import StorageServer, running_server
from tests.support.compute_clients import Reply

pytestmark = pytest.mark.nightly


class Client:
    """One connection that is kept: a reply that does not end where it says would spoil the next one."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=300)

    def __call__(self, method: str, path: str, data: Any = None, headers: dict[str, str] | None = None) -> Reply:
        body = json.dumps(data).encode() if isinstance(data, dict) else data
        self._connection.request(method, path, body=body, headers=headers or {})
        return Reply(self._connection.getresponse())

    def put(self, name: str, data: bytes, query: str = "") -> Reply:
        return self("POST", f"/upload/storage/v1/b/bucket/o?uploadType=media&name={quote(name, safe='')}{query}", data)

    def start(self, document: dict[str, Any], query: str = "") -> str:
        reply = self("POST", f"/upload/storage/v1/b/bucket/o?uploadType=resumable{query}", document)
        assert reply.status == 200
        parts = urlsplit(reply.headers["Location"])
        return f"{parts.path}?{parts.query}"

    def send(self, session: str, data: bytes, content_range: str) -> Reply:
        return self("PUT", session, data, {"Content-Range": content_range})


OBJECT = "/storage/v1/b/bucket/o/x"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StorageServer]:
    with running_server(tmp_path / "server") as server:
        yield server


@pytest.fixture
def client(server: StorageServer) -> Client:
    return Client(server.url)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/storage/v1/b/bucket/o?unheardOf=1", 400),
        ("GET", "/storage/v1/b/bucket/o?prefix=a&prefix=b", 400),
        ("GET", "/storage/v1/b/bucket/o?maxResults=0", 400),
        ("GET", "/storage/v1/b/bucket/o?maxResults=-1", 400),
        ("GET", "/storage/v1/b/bucket/o?pageToken=nonsense", 400),
        ("GET", "/storage/v1/b/bucket/o?fields=items(name", 400),
        ("GET", "/storage/v1/b/none/o", 404),
        ("GET", "/storage/v1/b/bucket/o/none", 404),
        ("GET", "/storage/v1/b/bucket/o/x?generation=one", 400),
        ("GET", "/storage/v1/b/bucket/o/x/acl", 501),
        ("GET", "/storage/v1/b/bucket/o/a/b", 501),
        ("POST", "/storage/v1/b/bucket/o/x/rewriteTo/b/bucket/o/y", 501),
        ("POST", "/batch/storage/v1", 501),
        ("PUT", "/bucket/x", 501),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=none&name=x", 400),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=media", 400),
        ("POST", "/upload/storage/v1/b/none/o?uploadType=media&name=x", 404),
        ("PUT", "/upload/storage/v1/b/bucket/o?upload_id=none", 404),
        ("PATCH", "/storage/v1/b/bucket/o/x", 501),
        ("DELETE", "/storage/v1/b/bucket/o/none", 404),
    ],
)
def test_what_it_does_not_know_is_refused_loudly(client: Client, method: str, path: str, status: int) -> None:
    for _ in range(2):
        reply = client(method, path, b"{}" if method in ("POST", "PATCH") else None)
        assert reply.status == status
        assert reply.json["error"]["code"] == status


def test_every_precondition_holds_on_every_method(client: Client) -> None:
    first = int(client.put("x", b"1", "&ifGenerationMatch=0").json["generation"])
    assert client.put("x", b"2", "&ifGenerationMatch=0").status == 412
    assert client.put("x", b"2", f"&ifGenerationNotMatch={first}").status == 412
    assert client.put("x", b"2", "&ifMetagenerationMatch=7").status == 412
    assert client("GET", f"{OBJECT}?alt=media").data == b"1"
    for method in ("GET", "DELETE"):
        assert client(method, f"{OBJECT}?ifGenerationMatch={first + 1}").status == 412
        assert client(method, f"{OBJECT}?ifMetagenerationMatch=9").status == 412
    assert client("GET", f"{OBJECT}?ifGenerationNotMatch={first}").status == 304
    assert client("GET", f"{OBJECT}?ifMetagenerationNotMatch=1").status == 304
    assert client("GET", f"{OBJECT}?ifGenerationMatch={first}").status == 200
    session = client.start({"name": "x"}, "&ifGenerationMatch=0")
    assert client.send(session, b"new", "bytes 0-2/3").status == 412
    assert client("DELETE", f"{OBJECT}?ifGenerationMatch={first}").status == 204
    assert client("GET", OBJECT).status == 404


def test_checksums_are_served_and_checked(client: Client) -> None:
    value = client.put("x", b"hello").json
    assert (value["crc32c"], value["md5Hash"], value["size"]) == ("mnG7TA==", "XUFAKrxLKna5cZ2REBfFkg==", "5")
    served = client("GET", f"{OBJECT}?alt=media").headers["x-goog-hash"]
    assert served == "crc32c=mnG7TA==,md5=XUFAKrxLKna5cZ2REBfFkg=="
    for document in ({"crc32c": "AAAAAA=="}, {"md5Hash": "XUFAKrxLKna5cZ2REBfFkA=="}):
        session = client.start({"name": "x", **document})
        assert client.send(session, b"hello", "bytes 0-4/5").status == 400
    session = client.start({"name": "x"})
    headers = {"Content-Range": "bytes 0-4/5", "x-goog-hash": "crc32c=AAAAAA=="}
    assert client("PUT", session, b"hello", headers).status == 400
    assert client("GET", OBJECT).json["generation"] == value["generation"]
