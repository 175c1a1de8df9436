"""The stand-in is as strict as it says: asked over plain HTTP, without Google's library in between."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from tests.standins.storage import StorageServer, running_server

pytestmark = pytest.mark.nightly

KIB256 = 256 << 10


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.data = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.data)


class Client:
    """One connection that is kept: a reply that does not end where it says would spoil the next one."""

    def __init__(self, url: str) -> None:
        self._address = urlsplit(url).netloc
        self._connection = http.client.HTTPConnection(self._address, timeout=20)

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
        ("GET", "/storage/v1/b", 400),
        ("GET", "/storage/v1/b/bucket/o/x/acl", 501),
        ("GET", "/storage/v1/b/bucket/o/a/b", 501),
        ("POST", "/storage/v1/b/bucket/o/x/rewriteTo/b/bucket/o/y", 501),
        ("POST", "/batch/storage/v1", 501),
        ("PUT", "/bucket/x", 501),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=none&name=x", 400),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=media", 400),
        ("POST", "/upload/storage/v1/b/none/o?uploadType=media&name=x", 404),
        ("PUT", "/upload/storage/v1/b/bucket/o?upload_id=none", 404),
        ("PATCH", "/storage/v1/b/bucket/o/none", 404),
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
    for method, data in (("GET", None), ("DELETE", None), ("PATCH", {"contentType": "a/b"})):
        assert client(method, f"{OBJECT}?ifGenerationMatch={first + 1}", data).status == 412
        assert client(method, f"{OBJECT}?ifMetagenerationMatch=9", data).status == 412
    assert client("GET", f"{OBJECT}?ifGenerationNotMatch={first}").status == 304
    assert client("GET", f"{OBJECT}?ifMetagenerationNotMatch=1").status == 304
    assert client("GET", f"{OBJECT}?ifGenerationMatch={first}").status == 200
    session = client.start({"name": "x"}, "&ifGenerationMatch=0")
    assert client.send(session, b"new", "bytes 0-2/3").status == 412
    compose = {"sourceObjects": [{"name": "x"}], "destination": {}}
    assert client("POST", f"{OBJECT}/compose?ifGenerationMatch=0", compose).status == 412
    assert client("DELETE", f"{OBJECT}?ifGenerationMatch={first}").status == 204
    assert client("GET", OBJECT).status == 404


def test_ranges(client: Client) -> None:
    client.put("x", b"0123456789")
    for header, status, data in (
        ("bytes=0-3", 206, b"0123"),
        ("bytes=8-", 206, b"89"),
        ("bytes=-3", 206, b"789"),
        ("bytes=-30", 206, b"0123456789"),
        ("bytes=5-500", 206, b"56789"),
    ):
        reply = client("GET", f"{OBJECT}?alt=media", headers={"Range": header})
        assert (reply.status, reply.data) == (status, data)
    assert reply.headers["Content-Range"] == "bytes 5-9/10"
    assert client("GET", f"{OBJECT}?alt=media", headers={"Range": "bytes=10-"}).status == 416
    assert client("GET", f"{OBJECT}?alt=media", headers={"Range": "bytes=4-2"}).status == 416
    client.put("x", b"")
    assert client("GET", f"{OBJECT}?alt=media", headers={"Range": "bytes=0-"}).status == 416
    assert client("GET", f"{OBJECT}?alt=media").data == b""


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


def test_multipart_takes_any_bytes_and_checks_them(client: Client) -> None:
    def body(document: dict[str, Any], data: bytes, end: bytes = b"") -> bytes:
        return (
            b"--B\r\ncontent-type: application/json; charset=UTF-8\r\n\r\n"
            + json.dumps(document).encode()
            + b"\r\n--B\r\ncontent-type: text/x\r\n\r\n"
            + data
            + b"\r\n--B--"
            + end
        )

    path = "/upload/storage/v1/b/bucket/o?uploadType=multipart"
    headers = {"Content-Type": 'multipart/related; boundary="B"'}
    for data in (b"", b"\r\n", b"\r\n--B--\r\n", b"\r\n--B--" * 3, bytes(range(256)) * 10_000):
        for end in (b"", b"\r\n"):
            made = client("POST", path, body({"name": "x"}, data, end), headers)
            assert (made.status, made.json["size"], made.json["contentType"]) == (200, str(len(data)), "text/x")
            assert client("GET", f"{OBJECT}?alt=media").data == data
    assert client("POST", path, body({"name": "x", "crc32c": "AAAAAA=="}, b"hello"), headers).status == 400
    assert client("POST", path, body({"name": "x", "unheardOf": 1}, b"hello"), headers).status == 400
    assert client("POST", path, body({}, b"hello"), headers).status == 400
    assert client("POST", path, body({"name": "x"}, b"hello")[:-1], headers).status == 400
    assert client("POST", path, b"--B\r\n", headers).status == 400


def test_a_resumable_upload_can_be_asked_resumed_repeated_and_cancelled(client: Client) -> None:
    data = bytes(range(256)) * 4096  # 1 MiB
    session = client.start({"name": "x"})
    reply = client.send(session, b"", "bytes */*")
    assert (reply.status, reply.headers.get("Range")) == (308, None)
    assert client.send(session, data[:1000], "bytes 0-999/*").status == 400, "not a multiple of 256 KiB"
    assert client.send(session, data[: KIB256 + 1], f"bytes 0-{KIB256 - 1}/*").status == 400, "length and range differ"
    reply = client.send(session, data[:KIB256], f"bytes 0-{KIB256 - 1}/*")
    assert (reply.status, reply.headers["Range"]) == (308, f"bytes=0-{KIB256 - 1}")
    assert client.send(session, data[3 * KIB256 :], f"bytes {3 * KIB256}-{len(data) - 1}/{len(data)}").status == 400
    # The same again and more, as after a lost answer.
    reply = client.send(session, data[: 2 * KIB256], f"bytes 0-{2 * KIB256 - 1}/{len(data)}")
    assert reply.headers["Range"] == f"bytes=0-{2 * KIB256 - 1}"
    assert client.send(session, b"", f"bytes */{len(data)}").headers["Range"] == f"bytes=0-{2 * KIB256 - 1}"
    assert client("GET", OBJECT).status == 404, "not there before it is finished"
    reply = client.send(session, data[2 * KIB256 :], f"bytes {2 * KIB256}-{len(data) - 1}/{len(data)}")
    assert (reply.status, reply.json["size"]) == (200, str(len(data)))
    assert client.send(session, b"", f"bytes */{len(data)}").json["generation"] == reply.json["generation"]
    assert client("GET", f"{OBJECT}?alt=media").data == data
    other = client.start({"name": "y"})
    assert client("DELETE", other).status == 499
    assert client.send(other, b"a", "bytes 0-0/1").status == 404
    assert client("PUT", client.start({"name": "whole"}), b"at once").json["size"] == "7"


def test_a_chunk_that_breaks_off_keeps_whole_blocks_only(server: StorageServer, client: Client) -> None:
    session = client.start({"name": "x"})
    server.fault(method="PUT", path="upload_id", action={"cut": "request", "after": KIB256 + 1000})
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        Client(server.url).send(session, b"a" * (2 * KIB256), f"bytes 0-{2 * KIB256 - 1}/*")
    deadline = time.monotonic() + 10
    while client.send(session, b"", "bytes */*").headers.get("Range") != f"bytes=0-{KIB256 - 1}":
        assert time.monotonic() < deadline, "waited 10 s for the first block"


def test_listing_has_pages_offsets_delimiters_and_fields(client: Client) -> None:
    for name in ("a", "b/1", "b/2", "b/c/1", "d", "e/1", "f"):
        client.put(name, b"")

    def pages(query: str) -> list[tuple[list[str], list[str]]]:
        found: list[tuple[list[str], list[str]]] = []
        token = ""
        while True:
            value = client("GET", f"/storage/v1/b/bucket/o?{query}{token}").json
            found.append(([item["name"] for item in value.get("items", [])], value.get("prefixes", [])))
            if "nextPageToken" not in value:
                return found
            token = f"&pageToken={quote(value['nextPageToken'])}"

    assert pages("maxResults=3") == [(["a", "b/1", "b/2"], []), (["b/c/1", "d", "e/1"], []), (["f"], [])]
    assert pages("maxResults=2&delimiter=/") == [(["a"], ["b/"]), (["d"], ["e/"]), (["f"], [])]
    assert pages("prefix=b/&delimiter=/") == [(["b/1", "b/2"], ["b/c/"])]
    assert pages("startOffset=b/2&endOffset=e/1") == [(["b/2", "b/c/1", "d"], [])]
    assert pages("prefix=z") == [([], [])]
    assert pages("maxResults=7") == [(["a", "b/1", "b/2", "b/c/1", "d", "e/1", "f"], [])]
    value = client("GET", "/storage/v1/b/bucket/o?maxResults=1&fields=items(name,size),nextPageToken").json
    assert value["items"] == [{"name": "a", "size": "0"}]
    assert set(value) == {"items", "nextPageToken"}
    assert client("GET", "/storage/v1/b/bucket/o/a?fields=name").json == {"name": "a"}


def test_patch_merges_and_none_removes(client: Client) -> None:
    client.put("x", b"1")
    value = client("PATCH", OBJECT, {"metadata": {"a": "1", "b": "2"}, "cacheControl": "no-store"}).json
    assert (value["metadata"], value["metageneration"]) == ({"a": "1", "b": "2"}, "2")
    value = client("PATCH", OBJECT, {"metadata": {"a": None}, "cacheControl": None}).json
    assert value["metadata"] == {"b": "2"}
    assert "cacheControl" not in value
    assert client("PATCH", OBJECT, {"size": "3"}).status == 400
    assert client("PATCH", OBJECT, {"crc32c": "AAAAAA=="}).status == 400


def test_compose_joins_and_checks_its_sources(client: Client) -> None:
    one = client.put("1", b"one").json
    client.put("2", b"two")
    path = "/storage/v1/b/bucket/o/x/compose"
    sources = [{"name": "1", "generation": one["generation"]}, {"name": "2"}]
    value = client("POST", path, {"sourceObjects": sources, "destination": {"contentType": "a/b"}}).json
    assert (value["size"], value["componentCount"], value["contentType"]) == ("6", 2, "a/b")
    assert "md5Hash" not in value
    assert client("GET", f"{OBJECT}?alt=media").data == b"onetwo"
    assert client("POST", path, {"sourceObjects": [{"name": "3"}]}).status == 404
    assert client("POST", path, {"sourceObjects": []}).status == 400
    stale = {"name": "1", "objectPreconditions": {"ifGenerationMatch": "1"}}
    assert client("POST", path, {"sourceObjects": [stale]}).status == 412


def test_buckets(client: Client) -> None:
    assert client("POST", "/storage/v1/b?project=p", {"name": "second"}).status == 200
    assert client("POST", "/storage/v1/b?project=p", {"name": "second"}).status == 409
    assert client("POST", "/storage/v1/b?project=p", {"name": "Not A Name"}).status == 400
    value = client("GET", "/storage/v1/b?project=p&maxResults=1").json
    assert [item["name"] for item in value["items"]] == ["bucket"]
    value = client("GET", f"/storage/v1/b?project=p&pageToken={quote(value['nextPageToken'])}").json
    assert [item["name"] for item in value["items"]] == ["second"]
    client.put("x", b"")
    assert client("DELETE", "/storage/v1/b/bucket").status == 409
    assert client("DELETE", "/storage/v1/b/second").status == 204
    assert client("GET", "/storage/v1/b/second").status == 404


@pytest.mark.parametrize("keep", [False, True])
def test_a_restart_forgets_nothing_and_old_generations_stay_only_if_kept(tmp_path: Path, keep: bool) -> None:
    with running_server(tmp_path, keep_generations=keep) as server:
        client = Client(server.url)
        old = client.put("x", b"old").json["generation"]
        new = client.put("x", b"new").json["generation"]
        client.put("gone", b"")
        client("DELETE", "/storage/v1/b/bucket/o/gone")
    for _ in range(2):
        with running_server(tmp_path, keep_generations=keep) as server:
            client = Client(server.url)
            assert client("GET", f"{OBJECT}?alt=media").data == b"new"
            assert client("GET", f"{OBJECT}?alt=media&generation={new}").data == b"new"
            reply = client("GET", f"{OBJECT}?alt=media&generation={old}")
            assert (reply.status, reply.data) == (200, b"old") if keep else reply.status == 404
            assert client("GET", "/storage/v1/b/bucket/o/gone").status == 404
            assert int(client.put("y", b"").json["generation"]) > int(new)
