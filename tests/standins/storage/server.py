"""The server: routes of the JSON API, and what a test uses to command it."""

from __future__ import annotations

import base64
import bisect
import collections
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.standins.http_server import Handler, Server
from tests.standins.storage.errors import ApiError, invalid, not_implemented
from tests.standins.storage.faults import Faults
from tests.standins.storage.http import CutError, Request
from tests.standins.storage.iam import Iam
from tests.standins.storage.resources import bucket_resource, object_resource
from tests.standins.storage.store import Conditions, Store, Version
from tests.standins.storage.uploads import CONDITIONS, Uploads, conditions_of


class StorageServer:
    """A server on a thread of its own; use it as a context manager.

    Args:
        folder: where objects are kept.
        host: address to bind.
        port: 0 for any free one; `url` then has it.
        page_size: most items in one page of a list, regardless of maxResults; small to exercise paging.
        keep_generations: what is overwritten stays readable by its generation, as with object versioning.
        md5: compute and serve MD5.
        authorize: whether a request with this bearer token ("" for none) may pass; None: every one may.
        iam: what those that pass may do with objects; None: everything.

    Attributes:
        boundary: the status for a token, an action (get, list, create, delete), a bucket and an object's name or the
            prefix of a list: 200, 401 or 403; None: every one may. A session of a resumable upload needs no token.
    """

    def __init__(
        self,
        *,
        folder: Path,
        host: str = "127.0.0.1",
        port: int = 0,
        page_size: int = 1000,
        keep_generations: bool = False,
        md5: bool = True,
        authorize: Callable[[str], bool] | None = None,
        iam: Iam | None = None,
    ) -> None:
        self.authorize = authorize
        self.iam = iam
        self.boundary: Callable[[str, str, str, str], int] | None = None
        self.store = Store(folder, keep_generations=keep_generations, md5=md5)
        self.uploads = Uploads(self.store)
        self.uploads.permit = self._permit_upload
        self.faults = Faults()
        self.page_size = page_size
        # How many requests came with each bearer token.
        self.tokens: collections.Counter[str] = collections.Counter()
        # (method, path with query, status or 0 where the connection was cut, Range header)
        self.requests: collections.deque[tuple[str, str, int, str]] = collections.deque(maxlen=100_000)
        self._http = _Server((host, port), _Handler)
        self._http.owner = self

    @property
    def url(self) -> str:
        return self._http.url

    def fault(
        self, *, path: str, action: dict[str, Any], method: str | None = None, times: int = 1, skip: int = 0
    ) -> None:
        """See faults.py."""
        self.faults.add({"path": path, "action": action, "method": method, "times": times, "skip": skip})

    def permit(self, request: Request, verb: str, bucket: str, name: str | None = None) -> None:
        """Raises ApiError: whose request it is may not do that."""
        if self.iam is not None:
            self.iam.require(_token_of(request), f"storage.objects.{verb}", bucket=bucket, name=name)

    def _permit_upload(self, request: Request, bucket: str, name: str, conditions: Conditions) -> None:
        self.permit(request, "create", bucket, name)
        present = self.store.bucket(bucket).live.get(name)
        if self.iam is not None and present is not None:
            if self.iam.conditions_first:
                conditions.check(present, reading=False)
            # https://cloud.google.com/storage/docs/access-control/iam-permissions: to replace one is to delete it too.
            self.permit(request, "delete", bucket, name)
        if present is not None:
            request.permit("delete", bucket, name)

    def __enter__(self) -> StorageServer:
        self._http.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.stop()


@contextlib.contextmanager
def running_server(folder: Path, *, buckets: tuple[str, ...] = ("bucket",), **options: Any) -> Iterator[StorageServer]:
    """A server for one test, with these buckets."""
    with StorageServer(folder=folder, **options) as server:
        for bucket in buckets:
            server.store.make_bucket(bucket, exist_ok=True)
        yield server


class _Server(Server):
    owner: StorageServer


class _Handler(Handler):
    server: _Server

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        span = self.headers.get("Range") or self.headers.get("Content-Range") or ""
        self.server.owner.requests.append((self.command, self.path, int(code), span))

    def _serve(self) -> None:
        owner = self.server.owner
        fault = owner.faults.match(self.command, self.path)
        request: Request | None = None
        try:
            try:
                request = Request(self, fault)
                if "delay" in fault:
                    time.sleep(fault["delay"])
                if "status" in fault:
                    raise ApiError(fault["status"], "scripted", "a scripted fault")
                _authorize(owner, request)
                _route(owner, request)
            except ApiError as error:
                if request is None:
                    # Not even read as a request, so its body is still in the way of the next one.
                    self.close_connection = True
                    self.send_response(error.status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(error.body())))
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(error.body())
                else:
                    request.query.pop("fields", None)
                    request.answer_bytes(error.body() if error.status != 304 else b"", status=error.status)
        except (CutError, BrokenPipeError, ConnectionResetError):
            self.log_request(0)
            if request is not None:
                request.cut()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve


def _authorize(owner: StorageServer, request: Request) -> None:
    token = _token_of(request)
    owner.tokens[token] += 1
    if owner.authorize is not None and not owner.authorize(token):
        raise ApiError(401, "authError", "Invalid Credentials")
    if (boundary := owner.boundary) is None:
        return

    def permit(action: str, bucket: str, name: str) -> None:
        if (status := boundary(token, action, bucket, name)) != 200:
            what = "Invalid Credentials" if status == 401 else f"no permission to {action} {name}"
            raise ApiError(status, {401: "authError"}.get(status, "forbidden"), what)

    request.permit = permit
    match (request.method, request.segments[-5:]):
        case ("GET", ["v1", "b", bucket, "o"]) | ("GET", [_, "v1", "b", bucket, "o"]):
            permit("list", bucket, request.query.get("prefix", ""))
        case ("GET" | "DELETE", ["v1", "b", bucket, "o", name]):
            permit({"GET": "get"}.get(request.method, "delete"), bucket, name)
        case ("POST" | "PUT", [_, "v1", "b", _, "o"]) if request.segments[0] == "upload":
            pass  # Where the object's name is known.
        case _:
            permit("administer", "", "")


def _token_of(request: Request) -> str:
    return (request.headers.get("Authorization") or "").removeprefix("Bearer ")


# -- routes ----------------------------------------------------------------------------------------------------------


def _route(owner: StorageServer, request: Request) -> None:
    match (request.method, request.segments):
        case ("POST", ["storage", "v1", "b"]):
            request.allow("project", "projection")
            name = request.json().get("name")
            if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]", name):
                raise invalid(f"Invalid bucket name: {name!r}")
            request.answer(bucket_resource(owner.store.make_bucket(name)))
        case ("GET", ["storage", "v1", "b", bucket]):
            request.allow("projection")
            request.answer(bucket_resource(owner.store.bucket(bucket)))
        case ("DELETE", ["storage", "v1", "b", bucket]):
            request.allow()
            owner.store.delete_bucket(bucket)
            request.answer_bytes(b"", status=204)
        case ("GET", ["storage", "v1", "b", bucket, "o"]):
            _list_objects(owner, request, bucket)
        case ("GET", ["storage", "v1", "b", bucket, "o", name]):
            _get(owner, request, bucket, name)
        case ("GET", ["download", "storage", "v1", "b", bucket, "o", name]):
            if request.query.get("alt") != "media":
                raise invalid("/download needs alt=media")
            _get(owner, request, bucket, name)
        case ("DELETE", ["storage", "v1", "b", bucket, "o", name]):
            request.allow("generation", *CONDITIONS)
            owner.permit(request, "delete", bucket, name)
            owner.store.delete(bucket, name, generation=request.number("generation"), conditions=conditions_of(request))
            request.answer_bytes(b"", status=204)
        case ("PATCH", ["storage", "v1", "b", bucket, "o", name]):
            owner.permit(request, "update", bucket, name)
            raise not_implemented("PATCH of an object")
        case ("POST", ["storage", "v1", "b", bucket, "o", name, "compose"]):
            owner.uploads.permit(request, bucket, name, conditions_of(request))
            raise not_implemented("compose")
        case ("POST", ["upload", "storage", "v1", "b", bucket, "o"]):
            if made := owner.uploads.insert(request, bucket):
                request.answer(object_resource(request, bucket, made))
        case ("PUT", ["upload", "storage", "v1", "b", bucket, "o"]):
            if made := owner.uploads.resume(request, bucket):
                request.answer(object_resource(request, bucket, made))
        case (method, segments):
            raise not_implemented(f"{method} /{'/'.join(segments)}")


def _list_objects(owner: StorageServer, request: Request, bucket_name: str) -> None:
    owner.permit(request, "list", bucket_name)
    request.allow("prefix", "delimiter", "maxResults", "pageToken", "projection")
    bucket = owner.store.bucket(bucket_name)
    prefix = request.query.get("prefix", "")
    delimiter = request.query.get("delimiter", "")
    size = min(request.number("maxResults", least=1) or owner.page_size, owner.page_size)
    after = _token(request) if "pageToken" in request.query else None
    items: list[Version] = []
    folders: list[str] = []
    last = ""
    more = False
    # A snapshot of the names: another thread may be writing.
    names = list(bucket.names)
    for name in names[bisect.bisect_left(names, prefix) :]:
        if not name.startswith(prefix):
            break
        cut = name.find(delimiter, len(prefix)) if delimiter else -1
        shown = name if cut < 0 else name[: cut + len(delimiter)]
        if (after is not None and shown <= after) or (folders and shown == folders[-1]):
            continue
        if len(items) + len(folders) == size:
            more = True
            break
        version = bucket.live.get(name)
        if version is None:
            continue
        last = shown
        if cut < 0:
            items.append(version)
        else:
            folders.append(shown)
    value: dict[str, Any] = {"kind": "storage#objects"}
    if items:
        value["items"] = [object_resource(request, bucket_name, version) for version in items]
    if folders:
        value["prefixes"] = folders
    if more:
        value["nextPageToken"] = _make_token(last)
    request.answer(value)


def _get(owner: StorageServer, request: Request, bucket: str, name: str) -> None:
    owner.permit(request, "get", bucket, name)
    request.allow("generation", "projection", *CONDITIONS)
    generation = request.number("generation")
    if request.query.get("alt") != "media":
        version = owner.store.find(bucket, name, generation=generation)
        conditions_of(request).check(version, reading=True)
        request.answer(object_resource(request, bucket, version))
        return
    version, descriptor = owner.store.open(bucket, name, generation=generation)
    try:
        conditions_of(request).check(version, reading=True)
        headers = {
            "x-goog-hash": f"crc32c={version.crc32c}" + (f",md5={version.md5}" if version.md5 else ""),
            "x-goog-generation": str(version.generation),
            "x-goog-metageneration": str(version.metageneration),
            "x-goog-stored-content-encoding": "identity",
            "x-goog-stored-content-length": str(version.size),
            "x-goog-storage-class": "STANDARD",
            "ETag": f'"{version.generation}/{version.metageneration}"',
            "Accept-Ranges": "bytes",
        }
        start, length, status = _byte_range(request.headers.get("Range"), version.size)
        if status == 206:
            headers["Content-Range"] = f"bytes {start}-{start + length - 1}/{version.size}"
        request.body.drain()
        kind = version.properties.get("contentType", "application/octet-stream")
        request.start(status, length=length, kind=kind, headers=headers)
        request.send_file(descriptor, offset=start, length=length)
    finally:
        os.close(descriptor)


def _byte_range(header: str | None, size: int) -> tuple[int, int, int]:
    """Offset, length and status."""
    if header is None:
        return 0, size, 200
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
    if match is None or not (match[1] or match[2]):
        raise not_implemented(f"Range: {header}")
    if not match[1]:
        length = min(int(match[2]), size)
        start = size - length
    else:
        start = int(match[1])
        last = min(int(match[2]), size - 1) if match[2] else size - 1
        length = last - start + 1
    if length <= 0:
        raise ApiError(416, "requestedRangeNotSatisfiable", f"{header} of {size} bytes")
    return start, length, 206


def _token(request: Request) -> str:
    try:
        after: str = json.loads(base64.urlsafe_b64decode(request.query["pageToken"]))["after"]
    except (ValueError, KeyError, TypeError):
        raise ApiError(400, "invalid", "Invalid pageToken") from None
    return after


def _make_token(after: str) -> str:
    return base64.urlsafe_b64encode(json.dumps({"after": after}).encode()).decode()
