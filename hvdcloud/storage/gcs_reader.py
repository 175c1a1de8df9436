"""Reads a `gs://` bucket over connections of its own, for many small objects and for parts of large ones.

Where `GcsBucket` has Google's client, this has one plain request for each object: for 20 kB the client's own work takes
several times as long as the transfer. Each request names the object's generation.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import google_crc32c

from hvdcloud.errors import CheckpointError, CredentialsError, UsageError
from hvdcloud.json_values import mappings, parse_object
from hvdcloud.storage.access_token import AccessToken
from hvdcloud.storage.base import (
    RETRY_SECONDS,
    BucketUnreachableError,
    CorruptObjectError,
    ObjectInfo,
    ObjectMissingError,
)
from hvdcloud.storage.checksum import CRC32C
from hvdcloud.storage.http_connection import Connection

ENDPOINT = "https://storage.googleapis.com"
PAGE = 1000
TIMEOUTS = (10.0, 60.0)
_FIELDS = "items(name,size,crc32c,generation),nextPageToken"
# The largest page of a listing: names of 1024 bytes, each escaped sixfold.
_MOST_JSON = 16 << 20
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 8.0
_T = TypeVar("_T")


class _TransientError(Exception):
    """The service asks to be tried again."""


class _TokenRefusedError(_TransientError):
    """The service does not take this token, and may take the next one."""


class LocalWriteError(Exception):
    """The file that an object is written to failed, not the network."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def gone(name: str, url: str) -> ObjectMissingError:
    """For an object that was listed, and is not there at that generation any more."""
    why = f"{name} in {url} was deleted or replaced while the data set was fetched"
    return ObjectMissingError(why, hint="hvdcloud run lists it again, once nothing writes there")


BYTES_AS_STORED = {"Accept-Encoding": "gzip"}
"""Header of a request for an object's bytes: one that is stored compressed is not unpacked on the way."""


class ObjectTargets:
    """What requests ask for, below the bucket's server, to get objects' bytes."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._objects = f"/download/storage/v1/b/{quote(bucket, safe='')}/o/{quote(prefix, safe='')}"

    def of(self, name: str, generation: int) -> str:
        """Of one object, at that generation."""
        return f"{self._objects}{quote(name, safe='')}?alt=media&generation={generation}"


class GcsReader:
    """One connection; not for several threads, which may share the token.

    Args:
        prefix: "" or ending in "/"; names are relative to it.
    """

    def __init__(self, *, bucket: str, prefix: str, endpoint: str | None, token: AccessToken) -> None:
        self._name = bucket
        self._prefix = prefix
        self._targets = ObjectTargets(bucket, prefix)
        self._token = token
        self._connection = Connection(endpoint or ENDPOINT, timeouts=TIMEOUTS)

    @property
    def url(self) -> str:
        return f"gs://{self._name}/{self._prefix}".rstrip("/")

    def close(self) -> None:
        self._connection.close()

    def pages(self, *, start: str = "", end: str = "") -> Iterator[list[ObjectInfo]]:
        """All objects whose names are not before `start` and, with `end`, before that; sorted, a page at a time.

        Raises UsageError: no such bucket; CredentialsError: no right to list; BucketUnreachableError.
        """
        query = {"prefix": self._prefix, "fields": _FIELDS, "maxResults": str(PAGE)}
        if start:
            query["startOffset"] = self._prefix + start
        if end:
            query["endOffset"] = self._prefix + end
        while True:
            target = f"/storage/v1/b/{quote(self._name, safe='')}/o?{urlencode(query)}"
            page = self._retried(f"listing {self.url}", partial(self._page, target))
            yield [self._info(each) for each in mappings(page.get("items"))]
            following = page.get("nextPageToken")
            if not isinstance(following, str) or not following:
                return
            query["pageToken"] = following

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
        """Read `size` bytes from `start` on of one generation, and hand each piece to `write` with its offset in the
        object. Returns their CRC32C. A connection that breaks is continued where it broke.

        Args:
            whole: these are all bytes of the object.

        Raises:
            ObjectMissingError: the object was deleted or replaced.
            CorruptObjectError: the object has another length.
            LocalWriteError: `write` raised OSError.
            CredentialsError, BucketUnreachableError.
        """
        crc = done = 0
        target = self._targets.of(name, generation)

        def attempt() -> None:
            nonlocal crc, done
            headers = dict(BYTES_AS_STORED)
            if done or not whole:
                headers["Range"] = f"bytes={start + done}-{start + size - 1}"
            self._ask(target, headers, what=name, missing=partial(gone, name, self.url))
            for piece in self._connection.body():
                if len(piece) > size - done:
                    self._connection.close()
                    raise CorruptObjectError(
                        f"{name} in {self.url} is longer than its {size} bytes", hint="hvdcloud run lists it again"
                    )
                try:
                    write(piece, start + done)
                except OSError as error:
                    self._connection.close()
                    raise LocalWriteError(error) from error
                crc = google_crc32c.extend(crc, piece)
                done += len(piece)

        if size:
            self._retried(f"reading {name} in {self.url}", attempt, progress=lambda: done)
        if done != size:
            why = f"{name} in {self.url} ends after {done} of {size} bytes"
            raise CorruptObjectError(why, hint="hvdcloud run lists it again")
        return crc

    # -- one request -------------------------------------------------------------------------------------------------

    def _page(self, target: str) -> dict[str, Any]:
        hint = f"gcloud storage ls {self.url} shows whether it is spelled so; data: in hvdcloud.yaml names it"
        missing = partial(UsageError, f"the bucket gs://{self._name} does not exist", hint=hint)
        self._ask(target, {}, what="the list of objects", missing=missing)
        data = bytearray()
        for piece in self._connection.body():
            data += piece
            if len(data) > _MOST_JSON:
                self._connection.close()
                raise CheckpointError(f"the list of {self.url} has a page without end", hint="hvdcloud run again")
        page = parse_object(data)
        if page is None:
            raise _TransientError("the list is not JSON")
        return page

    def _ask(self, target: str, headers: dict[str, str], *, what: str, missing: Callable[[], Exception]) -> None:
        """Send a request; returns if it is answered with the bytes that were asked for."""
        again = self._connection.is_open
        authorization = self._token.header()
        headers = {**headers, **authorization}
        try:
            status = self._connection.get(target, headers)
        except OSError:
            if not again:
                raise
            # The server has closed a connection that was not used for a while.
            self._connection.close()
            status = self._connection.get(target, headers)
        if status == (206 if "Range" in headers else 200):
            return
        self._connection.close()
        if status in (404, 412):
            raise missing()
        if status == 401 and self._token.refused(authorization):
            raise _TokenRefusedError(what)
        if status in (401, 403):
            raise self._refused(what, status)
        if status in (408, 429) or status >= 500:
            raise _TransientError(f"HTTP {status}")
        if status == 416:
            raise CorruptObjectError(f"{what} in {self.url} is shorter than listed", hint="hvdcloud run lists it again")
        raise CheckpointError(f"{self.url}: {what} was answered with HTTP {status}", hint="hvdcloud run again")

    def _refused(self, what: str, status: int) -> CredentialsError:
        return CredentialsError(
            f"{self.url}: {what} was refused (HTTP {status})",
            hint=f"name {self.url} in data of hvdcloud.tfvars, then hvdcloud setup gives nodes the right to read it",
        )

    def _retried(self, doing: str, attempt: Callable[[], _T], *, progress: Callable[[], int] = lambda: 0) -> _T:
        """Make an attempt, and others for as long as nothing arrives for RETRY_SECONDS at most."""
        deadline = time.monotonic() + RETRY_SECONDS
        delay, seen = _FIRST_DELAY, progress()
        while True:
            try:
                return attempt()
            except (_TransientError, OSError) as error:
                self._connection.close()
                if progress() > seen:
                    deadline, delay, seen = time.monotonic() + RETRY_SECONDS, _FIRST_DELAY, progress()
                if time.monotonic() + delay >= deadline:
                    if isinstance(error, _TokenRefusedError):
                        raise self._refused(str(error), 401) from None
                    raise BucketUnreachableError(
                        f"{doing} failed, also when tried again: {error or type(error).__name__}",
                        hint="check the network and type the command again: what is verified is not fetched again",
                    ) from error
                time.sleep(random.uniform(delay / 2, delay))
                delay = min(_LONGEST_DELAY, delay * 2)

    def _info(self, item: dict[str, Any]) -> ObjectInfo:
        try:
            name = item["name"]
            if not isinstance(name, str) or not name.startswith(self._prefix):
                raise ValueError(f"{name!r} was not asked for")
            size, generation, crc32c = int(item["size"]), int(item["generation"]), str(item.get("crc32c") or "")
            if size < 0 or generation < 0 or not CRC32C.fullmatch(crc32c):
                raise ValueError(f"{size} bytes, generation {generation}, CRC32C {crc32c!r}")
            return ObjectInfo(
                name=name[len(self._prefix) :], size=size, crc32c=crc32c, generation=generation, updated=0.0
            )
        except (KeyError, TypeError, ValueError) as error:
            why = f"the list of {self.url} has an object without size, generation or CRC32C: {error}"
            raise CheckpointError(why, hint="hvdcloud run again") from error
