"""Buckets and objects: in a folder on disk, so that memory stays flat and a restart loses nothing.

An object's version is two files, the bytes and a JSON document about them; the rename of the document is the moment at
which the version exists.
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import itertools
import json
import os
import shutil
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import google_crc32c

from tests.standins.storage.errors import ApiError, invalid, not_found


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One generation of one object. `file` is relative to the bucket's folder."""

    name: str
    generation: int
    metageneration: int
    size: int
    crc32c: str
    md5: str | None
    created: float
    updated: float
    file: str
    noncurrent: bool = False
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """ifGenerationMatch and its three relatives; None where a request does not have one."""

    generation_match: int | None = None
    generation_not_match: int | None = None
    metageneration_match: int | None = None
    metageneration_not_match: int | None = None

    def check(self, present: Version | None, *, reading: bool) -> None:
        """412 where they don't hold; 304 where a "not match" fails on a read."""
        generation = present.generation if present else 0
        metageneration = present.metageneration if present else None
        if self.generation_match is not None and self.generation_match != generation:
            raise ApiError(412, "conditionNotMet", f"ifGenerationMatch={self.generation_match}, it is {generation}")
        if self.metageneration_match is not None and self.metageneration_match != metageneration:
            raise ApiError(412, "conditionNotMet", "ifMetagenerationMatch does not hold")
        status = 304 if reading else 412
        if self.generation_not_match is not None and self.generation_not_match == generation:
            raise ApiError(status, "conditionNotMet", "ifGenerationNotMatch does not hold")
        if self.metageneration_not_match is not None and self.metageneration_not_match == metageneration:
            raise ApiError(status, "conditionNotMet", "ifMetagenerationNotMatch does not hold")


class Incoming:
    """Bytes on their way in: on disk, with running checksums."""

    def __init__(self, path: Path, *, md5: bool) -> None:
        self.path = path
        self.size = 0
        self._crc = 0
        self._md5 = hashlib.md5(usedforsecurity=False) if md5 else None
        self._file = path.open("xb")

    def add(self, data: bytes) -> None:
        self._file.write(data)
        self._crc = google_crc32c.extend(self._crc, data)
        if self._md5 is not None:
            self._md5.update(data)
        self.size += len(data)

    @property
    def crc32c(self) -> str:
        return base64.b64encode(self._crc.to_bytes(4, "big")).decode()

    @property
    def md5(self) -> str | None:
        return None if self._md5 is None else base64.b64encode(self._md5.digest()).decode()

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        self._file.close()
        self.path.unlink(missing_ok=True)


class Bucket:
    """Live objects by name, and old generations where they are kept. Use under the store's lock."""

    def __init__(self, name: str, folder: Path, created: float) -> None:
        self.name = name
        self.folder = folder
        self.created = created
        self.live: dict[str, Version] = {}
        self.names: list[str] = []
        self.old: dict[tuple[str, int], Version] = {}

    def put(self, version: Version) -> None:
        if version.name not in self.live:
            bisect.insort(self.names, version.name)
        self.live[version.name] = version

    def drop(self, name: str) -> Version:
        version = self.live.pop(name)
        del self.names[bisect.bisect_left(self.names, name)]
        return version


class Store:
    """All buckets below `folder`. Safe to use from several threads.

    Args:
        keep_generations: what an overwrite replaces stays readable by its generation.
        md5: compute and serve MD5.
    """

    def __init__(self, folder: Path, *, keep_generations: bool, md5: bool) -> None:
        self._folder = folder
        self._keep = keep_generations
        self._md5 = md5
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._last_generation = 0
        self.buckets: dict[str, Bucket] = {}
        self._incoming = folder / "incoming"
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(parents=True)
        self._load()

    def _load(self) -> None:
        for about in sorted(self._folder.glob("buckets/*/bucket.json")):
            value = json.loads(about.read_text())
            bucket = self.buckets[value["name"]] = Bucket(value["name"], about.parent, value["created"])
            for path in about.parent.glob("*.version"):
                version = Version(**json.loads(path.read_text()))
                self._last_generation = max(self._last_generation, version.generation)
                present = bucket.live.get(version.name)
                older = version
                if version.noncurrent:
                    pass
                elif present is None or present.generation < version.generation:
                    bucket.put(version)
                    if present is None:
                        continue
                    older = present
                if self._keep:
                    bucket.old[(older.name, older.generation)] = older
                else:
                    self._erase(bucket, older)

    # -- buckets ---------------------------------------------------------------------------------------------------

    def make_bucket(self, name: str, *, exist_ok: bool = False) -> Bucket:
        with self._lock:
            if name in self.buckets:
                if exist_ok:
                    return self.buckets[name]
                raise ApiError(409, "conflict", f"bucket {name} exists already")
            folder = self._folder / "buckets" / name
            folder.mkdir(parents=True)
            created = time.time()
            (folder / "bucket.json").write_text(json.dumps({"name": name, "created": created}))
            bucket = self.buckets[name] = Bucket(name, folder, created)
            return bucket

    def delete_bucket(self, name: str) -> None:
        with self._lock:
            bucket = self._bucket(name)
            if bucket.live or bucket.old:
                raise ApiError(409, "conflict", f"bucket {name} is not empty")
            del self.buckets[name]
            shutil.rmtree(bucket.folder)

    def bucket(self, name: str) -> Bucket:
        with self._lock:
            return self._bucket(name)

    def _bucket(self, name: str) -> Bucket:
        if name not in self.buckets:
            raise not_found(f"bucket {name}")
        return self.buckets[name]

    # -- objects ---------------------------------------------------------------------------------------------------

    def incoming(self) -> Incoming:
        return Incoming(self._incoming / str(next(self._numbers)), md5=self._md5)

    def commit(
        self,
        bucket_name: str,
        name: str,
        incoming: Incoming,
        *,
        properties: dict[str, Any],
        promised: dict[str, str],
        conditions: Conditions,
    ) -> Version:
        """Make uploaded bytes the live object, or refuse and leave everything as it was.

        Args:
            promised: "crc32c" and "md5Hash" as the client gave them.
        """
        try:
            incoming.close()
            if not 0 < len(name.encode()) <= 1024 or "\r" in name or "\n" in name or name in (".", ".."):
                raise invalid(f"{name!r} is not an object name")
            for key, actual in (("crc32c", incoming.crc32c), ("md5Hash", incoming.md5)):
                if actual is not None and promised.get(key) not in (None, actual):
                    raise invalid(f"Provided {key} {promised[key]!r} doesn't match calculated {actual!r}.")
            with self._lock:
                bucket = self._bucket(bucket_name)
                present = bucket.live.get(name)
                conditions.check(present, reading=False)
                generation = self._last_generation = max(time.time_ns() // 1000, self._last_generation + 1)
                stem = f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.{generation}"
                now = time.time()
                version = Version(
                    name=name,
                    generation=generation,
                    metageneration=1,
                    size=incoming.size,
                    crc32c=incoming.crc32c,
                    md5=incoming.md5,
                    created=now,
                    updated=now,
                    file=f"{stem}.data",
                    properties=properties,
                )
                incoming.path.replace(bucket.folder / version.file)
                self._write(bucket, version)
                self._retire(bucket, present)
                bucket.put(version)
                return version
        finally:
            incoming.discard()

    def find(self, bucket_name: str, name: str, *, generation: int | None) -> Version:
        with self._lock:
            return self._find(bucket_name, name, generation=generation)

    def _find(self, bucket_name: str, name: str, *, generation: int | None) -> Version:
        bucket = self._bucket(bucket_name)
        version = bucket.live.get(name)
        if generation is not None and (version is None or version.generation != generation):
            version = bucket.old.get((name, generation))
        if version is None:
            raise not_found(f"object {bucket_name}/{name}" + (f"#{generation}" if generation is not None else ""))
        return version

    def open(self, bucket_name: str, name: str, *, generation: int | None) -> tuple[Version, int]:
        """A version and a descriptor of its bytes, which stays good when the object is replaced.

        Found and opened in one step: Cloud Storage is strongly consistent, so a read beside an overwrite gets the one
        or the other.
        """
        with self._lock:
            version = self._find(bucket_name, name, generation=generation)
            return version, os.open(self._bucket(bucket_name).folder / version.file, os.O_RDONLY)

    def delete(self, bucket_name: str, name: str, *, generation: int | None, conditions: Conditions) -> None:
        with self._lock:
            bucket = self._bucket(bucket_name)
            version = self._find(bucket_name, name, generation=generation)
            conditions.check(version, reading=False)
            if bucket.live.get(name) is version:
                bucket.drop(name)
                if generation is None:
                    self._retire(bucket, version)
                else:
                    self._erase(bucket, version)
            else:
                del bucket.old[(name, version.generation)]
                self._erase(bucket, version)

    def corrupt(self, bucket_name: str, name: str, *, offset: int) -> None:
        """Flip one byte on disk. What the server says about the object stays as it was."""
        with self._lock:
            bucket = self._bucket(bucket_name)
            path = bucket.folder / self._find(bucket_name, name, generation=None).file
            with path.open("r+b") as file:
                file.seek(offset)
                byte = file.read(1)
                if not byte:
                    raise invalid(f"{name} has no byte {offset}")
                file.seek(offset)
                file.write(bytes([byte[0] ^ 0xFF]))

    def _write(self, bucket: Bucket, version: Version) -> None:
        path = (bucket.folder / version.file).with_suffix(".version")
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(version)))
        temporary.replace(path)

    def _retire(self, bucket: Bucket, version: Version | None) -> None:
        if version is None:
            return
        if self._keep:
            old = replace(version, noncurrent=True)
            self._write(bucket, old)
            bucket.old[(version.name, version.generation)] = old
        else:
            self._erase(bucket, version)

    def _erase(self, bucket: Bucket, version: Version) -> None:
        path = bucket.folder / version.file
        path.with_suffix(".version").unlink()
        path.unlink()


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
