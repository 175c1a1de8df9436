"""The three ways in: media, multipart and resumable."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.standins.storage.errors import ApiError, invalid, not_found
from tests.standins.storage.http import CHUNK, Request, parse_json
from tests.standins.storage.store import Conditions, Incoming, Store, Version

# A chunk that is not the last one has to be a multiple of this, and only whole ones of them are kept.
QUANTUM = 256 << 10
WRITABLE = {
    "name",
    "bucket",
    "contentType",
    "contentEncoding",
    "contentDisposition",
    "contentLanguage",
    "cacheControl",
    "metadata",
    "crc32c",
    "md5Hash",
    "storageClass",
}
CONDITIONS = ("ifGenerationMatch", "ifGenerationNotMatch", "ifMetagenerationMatch", "ifMetagenerationNotMatch")


@dataclass(slots=True, kw_only=True)
class Session:
    bucket: str
    name: str
    properties: dict[str, Any]
    promised: dict[str, str]
    conditions: Conditions
    incoming: Incoming
    declared: int | None
    version: Version | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


def conditions_of(request: Request) -> Conditions:
    return Conditions(
        generation_match=request.number("ifGenerationMatch"),
        generation_not_match=request.number("ifGenerationNotMatch"),
        metageneration_match=request.number("ifMetagenerationMatch"),
        metageneration_not_match=request.number("ifMetagenerationNotMatch"),
    )


def split_metadata(value: dict[str, Any], request: Request) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Name, properties to keep, and promised checksums."""
    if unknown := set(value) - WRITABLE:
        raise invalid(f"not writable: {', '.join(sorted(unknown))}")
    name = value.get("name", request.query.get("name"))
    if not isinstance(name, str) or not name:
        raise ApiError(400, "required", "Required object name")
    request.permit("create", request.segments[4], name)
    metadata = value.get("metadata", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise invalid("metadata takes strings")
    promised = {key: value[key] for key in ("crc32c", "md5Hash") if value.get(key)}
    kept = {k: v for k, v in value.items() if k not in ("name", "bucket", "crc32c", "md5Hash") and v is not None}
    return name, kept, promised


def hash_header(request: Request) -> dict[str, str]:
    """Checksums promised by x-goog-hash."""
    found: dict[str, str] = {}
    for part in (request.headers.get("x-goog-hash") or "").split(","):
        key, _, value = part.strip().partition("=")
        if value:
            found[{"crc32c": "crc32c", "md5": "md5Hash"}[key]] = value
    return found


class Uploads:
    """Takes objects in; holds the resumable sessions, which a restart of the server forgets."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sessions: dict[str, Session] = {}
        self._lock = threading.Lock()
        self.permit: Callable[[Request, str, str, Conditions], None] = lambda *_: None
        """Raises ApiError: the caller may not make this object."""

    def insert(self, request: Request, bucket: str) -> Version | None:
        """POST …/o?uploadType=…; None: already answered."""
        request.allow("uploadType", "name", "projection", *CONDITIONS)
        self._store.bucket(bucket)
        kind = request.query.get("uploadType")
        if kind == "media":
            return self._media(request, bucket)
        if kind == "multipart":
            return self._multipart(request, bucket)
        if kind == "resumable":
            self._initiate(request, bucket)
            return None
        raise invalid(f"uploadType={kind}")

    def _media(self, request: Request, bucket: str) -> Version:
        kind = request.headers.get("Content-Type") or "application/octet-stream"
        name, kept, _ = split_metadata({"contentType": kind}, request)
        incoming = self._store.incoming()
        try:
            while data := request.body.read(CHUNK):
                incoming.add(data)
        except BaseException:
            incoming.discard()
            raise
        return self._commit(
            request,
            bucket,
            name,
            incoming,
            properties=kept,
            promised=hash_header(request),
            conditions=conditions_of(request),
        )

    def _multipart(self, request: Request, bucket: str) -> Version:
        match = re.fullmatch(
            rb'multipart/related; *boundary=(?:"([^"]+)"|([^ ;]+))',
            (request.headers.get("Content-Type") or "").encode(),
        )
        if match is None:
            raise invalid("a multipart upload needs Content-Type: multipart/related; boundary=…")
        boundary = b"--" + (match[1] or match[2])
        body = request.body
        if body.readline() != boundary:
            raise invalid("the body does not begin with the boundary")
        if not _part_type(request).startswith("application/json"):
            raise invalid("the first part is not JSON")
        document = b""
        while (line := body.readline()) != boundary:
            document += line + b"\r\n"
        kind = _part_type(request)
        value = parse_json(document)
        name, kept, promised = split_metadata(value, request)
        kept.setdefault("contentType", kind)
        # The content may be anything, so its end is known by the length alone: what is left but the closing boundary.
        closing = b"\r\n" + boundary + b"--"
        incoming = self._store.incoming()
        try:
            while body.left > len(closing) + 2:
                incoming.add(body.read(min(CHUNK, body.left - len(closing) - 2)))
            tail = body.read_all()
            end = tail.rfind(closing)
            if end < 0 or tail[end + len(closing) :] not in (b"", b"\r\n"):
                raise invalid("the body does not end with the boundary")
            incoming.add(tail[:end])
        except BaseException:
            incoming.discard()
            raise
        return self._commit(
            request,
            bucket,
            name,
            incoming,
            properties=kept,
            promised={**promised, **hash_header(request)},
            conditions=conditions_of(request),
        )

    def _commit(
        self, request: Request, bucket: str, name: str, incoming: Incoming, *, conditions: Conditions, **options: Any
    ) -> Version:
        try:
            self.permit(request, bucket, name, conditions)
        except ApiError:
            incoming.discard()
            raise
        return self._store.commit(bucket, name, incoming, conditions=conditions, **options)

    # -- resumable -------------------------------------------------------------------------------------------------

    def _initiate(self, request: Request, bucket: str) -> None:
        name, kept, promised = split_metadata(request.json(), request)
        kept.setdefault("contentType", request.headers.get("x-upload-content-type") or "application/octet-stream")
        length = request.headers.get("x-upload-content-length")
        self.permit(request, bucket, name, conditions_of(request))
        session = Session(
            bucket=bucket,
            name=name,
            properties=kept,
            promised=promised,
            conditions=conditions_of(request),
            incoming=self._store.incoming(),
            declared=int(length) if length else None,
        )
        upload_id = uuid.uuid4().hex
        with self._lock:
            self._sessions[upload_id] = session
        host = request.headers.get("Host")
        location = f"http://{host}/upload/storage/v1/b/{bucket}/o?uploadType=resumable&upload_id={upload_id}"
        request.answer_bytes(b"", status=200, headers={"Location": location, "X-GUploader-UploadID": upload_id})

    def resume(self, request: Request, bucket: str) -> Version | None:
        """PUT …/o?upload_id=…: a chunk, or a question about the state; None: already answered."""
        session = self._session(request, bucket)
        with session.lock:
            if session.version is not None:
                return session.version
            start, total = self._range(request, session)
            if start is not None:
                self._take(request, session, start)
            if total is None or session.incoming.size < total:
                kept = session.incoming.size
                headers = {"Range": f"bytes=0-{kept - 1}"} if kept else {}
                request.answer_bytes(b"", status=308, headers=headers)
                return None
            session.promised.update(hash_header(request))
            try:
                session.version = self._commit(
                    request,
                    session.bucket,
                    session.name,
                    session.incoming,
                    properties=session.properties,
                    promised=session.promised,
                    conditions=session.conditions,
                )
            except ApiError:
                with self._lock:
                    self._sessions.pop(request.query["upload_id"], None)
                raise
            return session.version

    def _session(self, request: Request, bucket: str) -> Session:
        request.allow("uploadType", "upload_id")
        with self._lock:
            session = self._sessions.get(request.query.get("upload_id", ""))
        if session is None or session.bucket != bucket:
            raise not_found("upload session")
        return session

    def _range(self, request: Request, session: Session) -> tuple[int | None, int | None]:
        """First byte of this chunk (None: only a question) and the whole size (None: not known yet)."""
        header = request.headers.get("Content-Range")
        length = request.body.length
        if header is None:
            return 0, length
        match = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", header)
        if match is None:
            raise invalid(f"Content-Range: {header}")
        total = None if match[3] == "*" else int(match[3])
        if session.declared is not None and total not in (None, session.declared):
            raise invalid(f"{total} bytes in all, but {session.declared} were declared")
        if match[1] is None:
            if length:
                raise invalid("a question about the state has no body")
            return None, total
        first, last = int(match[1]), int(match[2])
        if last - first + 1 != length:
            raise invalid(f"Content-Range {header} with a body of {length} bytes")
        if (total is None or last + 1 < total) and length % QUANTUM:
            raise invalid(f"a chunk that is not the last one has to be a multiple of {QUANTUM} bytes")
        if total is not None and last >= total:
            raise invalid(f"Content-Range: {header}")
        if first > session.incoming.size:
            raise invalid(f"the chunk starts at {first}, only {session.incoming.size} bytes are there")
        return first, total

    def _take(self, request: Request, session: Session, start: int) -> None:
        overlap = session.incoming.size - start
        while overlap > 0 and request.body.left:
            overlap -= len(request.body.read(min(CHUNK, overlap)))
        # A connection that breaks loses the block it was in, as at Google.
        while data := request.body.read(QUANTUM):
            session.incoming.add(data)


def _part_type(request: Request) -> str:
    kind = ""
    while line := request.body.readline():
        key, _, value = line.partition(b":")
        if key.strip().lower() == b"content-type":
            kind = value.strip().decode()
    return kind
