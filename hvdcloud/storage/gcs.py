"""`gs://BUCKET[/PREFIX]`: Cloud Storage, through google-cloud-storage.

What the library leaves to its caller is done here: retries with a deadline of our own (its default is 120 s of
silence); and a checksum of what is on the disk after a download, because the library does not verify a download that it
had to resume.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.storage.base import (
    MOST_READ,
    PIECE,
    BucketUnreachableError,
    CorruptObjectError,
    Download,
    ObjectInfo,
    ObjectMissingError,
    PreconditionError,
    changed,
    check_name,
    partial_path,
    settle,
    too_large,
    vanished,
)
from hvdcloud.storage.checksum import crc32c_of_bytes, crc32c_of_file, open_plain
from hvdcloud.storage.gcs_client import make_client
from hvdcloud.storage.gcs_errors import explain, http_status
from hvdcloud.storage.threads import attempt, parallel

# The library holds one chunk of an upload in memory; its default of 100 MiB, times our threads, is too much for a node.
UPLOAD_CHUNK = 32 << 20
# An object above this size is fetched in slices side by side; each slice is retried on its own.
SLICE = 32 << 20
# Seconds to connect, and to wait for the next bytes.
TIMEOUT = (10.0, 60.0)
# The key in an object's metadata by which an upload recognises its own work.
_TOKEN = "hvdcloud-upload"
_FIELDS = "items(name,size,crc32c,generation),nextPageToken"


class GcsBucket:
    """See Bucket. Making one reads the credentials; no request goes to the bucket."""

    write_once = True

    def __init__(
        self, *, bucket: str, prefix: str, endpoint: str | None, credentials: Any, retry_seconds: float
    ) -> None:
        from google.cloud.storage.retry import DEFAULT_RETRY

        self._name = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = make_client(endpoint=endpoint, credentials=credentials)
        self._bucket = self._client.bucket(bucket)
        self._kwargs: dict[str, Any] = {
            "timeout": TIMEOUT,
            "retry": DEFAULT_RETRY.with_delay(initial=0.2, maximum=8.0, multiplier=2.0).with_timeout(retry_seconds),
        }

    @property
    def url(self) -> str:
        return f"gs://{self._name}/{self._prefix}".rstrip("/")

    # -- reading ---------------------------------------------------------------------------------------------------

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._explained(f"listing {prefix or 'objects'}", missing_is_bucket=True):
            prefix = self._prefix + prefix
            for blob in self._client.list_blobs(self._bucket, prefix=prefix, fields=_FIELDS, **self._kwargs):
                yield self._info(blob)

    def prefixes(self, prefix: str) -> Sequence[str]:
        found: set[str] = set()
        with self._explained(f"listing {prefix}", missing_is_bucket=True):
            listing = self._client.list_blobs(
                self._bucket,
                prefix=self._prefix + prefix,
                delimiter="/",
                fields="prefixes,nextPageToken",
                **self._kwargs,
            )
            for _ in listing.pages:
                found.update(listing.prefixes)
        return sorted(name.removeprefix(self._prefix) for name in found)

    def stat(self, name: str) -> ObjectInfo | None:
        with self._explained(f"looking at {name}"):
            blob = self._bucket.get_blob(self._full(name), **self._kwargs)
            return None if blob is None else self._info(blob)

    def read(self, name: str, *, generation: int | None = None, most: int = MOST_READ) -> bytes:
        bucket = self

        class Bounded(BytesIO):
            def write(self, data: Any) -> int:
                if self.tell() + len(data) > most:
                    raise too_large(bucket, name, most=most)
                return super().write(data)

        with self._explained(f"reading {name}"):
            blob = self._bucket.blob(self._full(name), generation=generation)
            blob.download_to_file(found := Bounded(), checksum="crc32c", **self._kwargs)
            return found.getvalue()

    def pieces(self, name: str, *, start: int = 0) -> Iterator[bytes]:
        info = self.stat(name)
        if info is None:
            raise ObjectMissingError(f"there is no {name} in {self.url}", hint="hvdcloud pull shows what there is")
        blob = self._bucket.blob(self._full(name), generation=info.generation)
        for first in range(start, info.size, PIECE):
            with self._explained(f"reading {name}"):
                # The object's checksum says nothing about a part of it. Raw: nothing is unpacked on the way.
                piece: bytes = blob.download_as_bytes(
                    start=first, end=min(first + PIECE, info.size) - 1, checksum=None, raw_download=True, **self._kwargs
                )
            yield piece

    def download_many(
        self, items: Sequence[Download], *, workers: int, on_done: Callable[[Download, Exception | None], None]
    ) -> None:
        small = [item for item in items if item.size <= 2 * SLICE]
        for outcome in parallel(small, self._download, workers=workers):
            on_done(outcome.item, outcome.error)
        for item in items:
            if item.size > 2 * SLICE:
                on_done(item, attempt(item, lambda item: self._download(item, workers=workers)).error)

    def _download(self, item: Download, *, workers: int | None = None) -> None:
        """Bring one object to its target; with `workers`, in slices that so many of them fetch."""
        partial = partial_path(item.target)
        try:
            item.target.parent.mkdir(parents=True, exist_ok=True)
            blob = self._bucket.blob(self._full(item.name), generation=item.generation)
            if workers is None:
                blob.download_to_filename(str(partial), checksum="crc32c", raw_download=True, **self._kwargs)
            else:
                self._download_slices(blob, item, partial, workers=workers)
            settle(partial, item)
        except Exception as error:
            raise explain(error, doing=f"fetching {item.name}", url=self.url) from error
        finally:
            # One whose name is too long for this disk was never made.
            with contextlib.suppress(OSError):
                partial.unlink()

    def _download_slices(self, blob: Any, item: Download, partial: Path, *, workers: int) -> None:
        from google.cloud.storage import transfer_manager

        blob.reload(**self._kwargs)
        if (blob.size, blob.crc32c) != (item.size, item.crc32c):
            # Not worth gigabytes: the bucket itself says that these are other bytes.
            raise CorruptObjectError(
                f"{item.name} in {self.url} is not what the manifest promises",
                hint="the object was replaced in the bucket; restore it there, or take an earlier checkpoint",
            )
        transfer_manager.download_chunks_concurrently(
            blob,
            str(partial),
            chunk_size=SLICE,
            worker_type=transfer_manager.THREAD,
            max_workers=workers,
            crc32c_checksum=False,  # `settle` takes it, of what is on the disk
            download_kwargs={"raw_download": True, **self._kwargs},
        )

    # -- writing ---------------------------------------------------------------------------------------------------

    def upload(
        self,
        path: Path,
        name: str,
        *,
        if_generation: int | None = None,
        crc32c: str | None = None,
    ) -> ObjectInfo:
        def send(blob: Any, **options: Any) -> None:
            with open_plain(path) as file:
                blob.upload_from_file(file, size=os.fstat(file.fileno()).st_size, **options)

        try:
            promised = crc32c or crc32c_of_file(path)[1]
        except FileNotFoundError as error:
            raise vanished(path) from error
        try:
            info = self._send(name, send, crc32c=promised, if_generation=if_generation)
        except (PreconditionError, BucketUnreachableError):
            raise  # Where only the answer was lost, the object was replaced, even if the file has changed since.
        except (HvdcloudError, FileNotFoundError, ValueError) as error:
            # The library raises ValueError for a file that became shorter, the server 400 for other bytes: whether
            # the file changed is asked of the file.
            try:
                is_other = crc32c_of_file(path)[1] != promised
            except FileNotFoundError:
                raise vanished(path) from error
            if is_other:
                raise changed(path) from error
            raise
        if info.crc32c != promised:
            raise changed(path)
        return info

    def write(self, name: str, data: bytes, *, if_generation: int | None = None) -> ObjectInfo:
        def send(blob: Any, **options: Any) -> None:
            blob.upload_from_string(data, **options)

        return self._send(name, send, crc32c=crc32c_of_bytes(data), if_generation=if_generation)

    def _send(self, name: str, send: Callable[..., None], *, crc32c: str, if_generation: int | None) -> ObjectInfo:
        blob = self._bucket.blob(self._full(name), chunk_size=UPLOAD_CHUNK)
        blob.crc32c = crc32c
        token = os.urandom(12).hex()
        blob.metadata = {_TOKEN: token}
        with self._explained(f"uploading {name}"):
            try:
                # checksum=None: any other value would replace the promised CRC32C by one of what is read now. The
                # server compares the bytes that arrive with the promise and refuses them before the object changes.
                kind = "application/octet-stream"
                send(blob, content_type=kind, if_generation_match=if_generation, checksum=None, **self._kwargs)
            except Exception as error:
                # A retry after a lost answer meets the object that the first attempt made. It is ours if it carries
                # our token: its bytes alone don't tell, two writers may write the same.
                if http_status(error) != 412:
                    raise
                there = self._bucket.get_blob(self._full(name), **self._kwargs)
                if there is None or (there.metadata or {}).get(_TOKEN) != token:
                    raise PreconditionError(
                        f"{name} in {self.url} is not at generation {if_generation}",
                        hint="another process wrote it; hvdcloud status shows the cluster",
                    ) from error
                blob = there
            return self._info(blob)

    # -- helpers ---------------------------------------------------------------------------------------------------

    def _full(self, name: str) -> str:
        check_name(name)
        return self._prefix + name

    def _info(self, blob: Any) -> ObjectInfo:
        return ObjectInfo(
            name=blob.name.removeprefix(self._prefix),
            size=int(blob.size),
            crc32c=blob.crc32c or "",
            generation=int(blob.generation),
        )

    @contextlib.contextmanager
    def _explained(self, doing: str, *, missing_is_bucket: bool = False) -> Iterator[None]:
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except Exception as error:
            # Some of what Google's library says of credentials is a ValueError, too.
            if isinstance(error, ValueError | FileNotFoundError) and not isinstance(error, GoogleAuthError):
                raise
            if missing_is_bucket and http_status(error) == 404:
                raise UsageError(
                    f"the bucket gs://{self._name} does not exist",
                    hint="correct its name in hvdcloud.yaml, or make it: hvdcloud setup, or gcloud storage buckets "
                    f"create gs://{self._name} --uniform-bucket-level-access",
                ) from error
            raise explain(error, doing=doing, url=self.url) from error
