"""Reading a bucket whole: pages of objects, and each object's bytes at one generation; `file://` and `gs://`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import google_crc32c

from hvdcloud.errors import UsageError
from hvdcloud.storage.access_token import AccessToken
from hvdcloud.storage.base import CorruptObjectError, ObjectInfo, ObjectMissingError
from hvdcloud.storage.checksum import CHUNK
from hvdcloud.storage.folder import FolderBucket
from hvdcloud.storage.gcs_reader import PAGE, GcsReader, LocalWriteError, gone
from hvdcloud.storage.open import open_bucket


class FolderReader:
    """See GcsReader. A folder promises no checksum: what is read is of one generation from first to last byte."""

    def __init__(self, bucket: FolderBucket) -> None:
        self._bucket = bucket

    @property
    def url(self) -> str:
        return self._bucket.url

    def close(self) -> None:
        """Nothing is open between two reads."""

    def pages(self, *, start: str = "", end: str = "") -> Iterator[list[ObjectInfo]]:
        page: list[ObjectInfo] = []
        for each in self._bucket.list(""):
            if each.name >= start and (not end or each.name < end):
                page.append(each)
            if len(page) >= PAGE:
                yield page
                page = []
        yield page

    def read(
        self,
        name: str,
        *,
        generation: int,
        size: int,
        write: Callable[[bytes, int], object],
        start: int = 0,
        whole: bool = True,
    ) -> int:
        try:
            descriptor = self._bucket.descriptor(name, generation=generation)
        except ObjectMissingError as error:
            raise gone(name, self.url) from error
        with os.fdopen(descriptor, "rb", buffering=0):
            crc = done = 0
            while done < size and (piece := os.pread(descriptor, min(CHUNK, size - done), start + done)):
                try:
                    write(piece, start + done)
                except OSError as error:
                    raise LocalWriteError(error) from error
                crc = google_crc32c.extend(crc, piece)
                done += len(piece)
            status = os.fstat(descriptor)
        if done != size or (whole and status.st_size != size) or status.st_mtime_ns != generation:
            why = f"{name} in {self.url} changed while the data set was fetched"
            raise CorruptObjectError(why, hint="hvdcloud run lists it again, once nothing writes there")
        return crc


Reader = FolderReader | GcsReader
"""Not for several threads."""


def is_bucket(url: str) -> bool:
    """Whether objects are read over HTTP."""
    return url.startswith("gs://")


def bucket_and_prefix(url: str) -> tuple[str, str]:
    """Of a `gs://` URL; the prefix is "" or ends in "/". Raises UsageError: it names no bucket."""
    bucket, _, prefix = url.removeprefix("gs://").partition("/")
    if not bucket:
        raise UsageError(f"{url!r} names no bucket", hint="data: in hvdcloud.yaml: gs://BUCKET[/PREFIX]")
    prefix = prefix.strip("/")
    return bucket, f"{prefix}/" if prefix else ""


def open_reader(url: str, *, endpoint: str | None, token: AccessToken) -> Reader:
    """For what `file:///DIR` or `gs://BUCKET[/PREFIX]` names; no request is made yet. Raises UsageError: other URLs."""
    if is_bucket(url):
        bucket, prefix = bucket_and_prefix(url)
        endpoint = endpoint.rstrip("/") if endpoint else None
        return GcsReader(bucket=bucket, prefix=prefix, endpoint=endpoint, token=token)
    found = open_bucket(url)
    assert isinstance(found, FolderBucket)
    return FolderReader(found)
