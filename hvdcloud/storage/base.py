"""The interface to object storage; `open_bucket` (open.py) picks the backend by URL.

A bucket holds named objects. An object is replaced as a whole or not at all, its generation grows each time it is
replaced, and a write may be made to depend on the present generation. Both backends keep these promises:
`file://` (folder.py) and `gs://` (gcs.py); tests/contract holds them to it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hvdcloud.errors import CapacityError, CheckpointError, HvdcloudError
from hvdcloud.storage.checksum import crc32c_of_file

# Ending of a file that a download is still writing. A name with it never goes to a bucket, and what a killed
# download left behind is found by it.
PARTIAL_SUFFIX = ".hvdcloud-part"

# Bytes of an object of any size that are in memory at a time.
PIECE = 1 << 20

# Bytes of an object that are read into memory, unless its reader says another number.
MOST_READ = 16 << 20

# How long the lock of a folder is waited for, which its holder needs for the moment of a rename.
LOCK_SECONDS = 30.0

# How long a backend keeps trying while the network or the service fails, per request.
RETRY_SECONDS = 60.0


class PreconditionError(CheckpointError):
    """The object is not at the generation that the write was made to depend on."""


class ObjectMissingError(CheckpointError):
    """No such object, or no longer at that generation."""


class TooLargeError(CheckpointError):
    """The object has more bytes than its reader takes, who has not read them."""


class ChangedWhileUploadingError(CheckpointError):
    """The file changed or vanished while it was read. Nothing in the bucket was touched."""


class CorruptObjectError(CheckpointError):
    """The bytes that arrived are not those that the manifest promises."""


class BucketUnreachableError(CheckpointError):
    """Network or service failures lasted for as long as we retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """One object."""

    name: str  # Relative to the bucket's URL.
    size: int  # Bytes.
    crc32c: str  # Base64, as Cloud Storage writes it; empty where the object would have to be read for it.
    generation: int  # Grows whenever the object is replaced; 0 is never a generation.


@dataclass(frozen=True, slots=True, kw_only=True)
class Download:
    """One object to bring to `target`, with what it has to be."""

    name: str
    target: Path
    size: int
    crc32c: str
    generation: int | None = None  # Exactly this one; None takes the live one (its bytes must match all the same).
    modified: float | None = None  # Modification time to give the file, seconds since the epoch.


class Bucket(Protocol):
    """Where checkpoints are kept. Safe to use from several threads.

    Every method raises BucketUnreachableError when the network failed for longer than it retries, CredentialsError
    when access is refused, and CheckpointError for a name that this bucket can't hold.
    """

    @property
    def url(self) -> str: ...

    @property
    def write_once(self) -> bool:
        """Whether a checkpoint that exists is never replaced, since nodes may not have the right to. Where they hold
        the bucket itself, as they do a folder, that would protect nothing and fill the disk."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Objects whose name starts with `prefix`, sorted by name, fetched page by page."""

    def prefixes(self, prefix: str) -> Sequence[str]:
        """The "folders" directly below `prefix` (which ends in "/" or is empty): sorted, each ending in "/"."""

    def stat(self, name: str) -> ObjectInfo | None: ...

    def upload(
        self,
        path: Path,
        name: str,
        *,
        if_generation: int | None = None,
        crc32c: str | None = None,
    ) -> ObjectInfo:
        """Store a file, and hash it while it is read for that.

        Args:
            if_generation: replace only this generation; 0: only where there is no such object.
            crc32c: what the bytes must be. With it, a file that changes on the way is refused.

        Raises ChangedWhileUploadingError: the bytes read are not those of `crc32c`, and the object is untouched;
        PreconditionError: `if_generation` does not hold.
        """

    def write(self, name: str, data: bytes, *, if_generation: int | None = None) -> ObjectInfo:
        """Store a few bytes; `if_generation` as in `upload`."""

    def read(self, name: str, *, generation: int | None = None, most: int = MOST_READ) -> bytes:
        """A small object's bytes. Raises ObjectMissingError: no such object, or not at that generation; TooLargeError:
        it has more than `most` bytes, as anybody may have made it."""

    def pieces(self, name: str, *, start: int = 0) -> Iterator[bytes]:
        """The bytes of an object of any size from `start` on, PIECE at a time; all are of one generation.

        Raises ObjectMissingError with the first of them: no such object.
        """

    def download_many(
        self, items: Sequence[Download], *, workers: int, on_done: Callable[[Download, Exception | None], None]
    ) -> None:
        """Bring every item to its target: written under a temporary name beside it, verified, flushed to disk, renamed.

        Missing parent folders are made. `on_done` is called once per item, in the caller's thread, with None or with
        what went wrong (ObjectMissingError, CorruptObjectError, BucketUnreachableError, CapacityError, …); one item's
        failure stops no other item.
        """


def check_name(name: str) -> tuple[str, ...]:
    """The parts of an object's name, once it is sure that the name stays below the folder it is put in.

    Raises CheckpointError: it is absolute, has an empty, "." or ".." part, or a character not allowed in object names.
    """
    parts = tuple(name.split("/"))
    if any(part in ("", ".", "..") for part in parts):
        raise CheckpointError(
            f"the object name {name!r} would leave the folder it belongs to",
            hint="look at who can write to this bucket; hvdcloud never makes such names",
        )
    if any(ord(char) < 32 or 0xD800 <= ord(char) < 0xE000 for char in name) or len(name.encode()) > 1024:
        raise CheckpointError(
            f"{name!r} can't be an object's name: Cloud Storage takes up to 1024 bytes of UTF-8 without control"
            " characters",
            hint="rename the file",
        )
    return parts


def vanished(path: Path) -> ChangedWhileUploadingError:
    """The error of an upload whose file is gone."""
    return ChangedWhileUploadingError(f"{path} is gone", hint="it is uploaded if it comes back")


def changed(path: Path) -> ChangedWhileUploadingError:
    """The error of an upload whose file has changed meanwhile."""
    return ChangedWhileUploadingError(f"{path} changed while it was read", hint="it is uploaded once it stops changing")


def partial_path(target: Path) -> Path:
    """A new temporary name in the folder of `target`, from which the finished file is renamed."""
    return target.with_name(f".{secrets.token_hex(8)}{PARTIAL_SUFFIX}")


def ignores_case(folder: Path) -> bool:
    """Whether names that differ in case only are one file in it, as usual on macOS."""
    probe = folder / f".case{PARTIAL_SUFFIX}"
    try:
        probe.touch()
        return probe.with_name(probe.name.swapcase()).exists()
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def settle(partial: Path, item: Download) -> None:
    """Make a finished download the file it was meant to be: verified, flushed to disk, renamed in one move.

    Raises CorruptObjectError: size or CRC32C differ; `partial` is removed and the old target stays.
    """
    size, crc32c = crc32c_of_file(partial)
    if (size, crc32c) != (item.size, item.crc32c):
        partial.unlink()
        raise CorruptObjectError(
            f"{item.name} does not verify: {item.size} bytes with CRC32C {item.crc32c} were promised, "
            f"{size} bytes with {crc32c} came",
            hint="the object was damaged or replaced in the bucket; restore it there, or take an earlier checkpoint",
        )
    with partial.open("rb") as file:
        if item.modified is not None:
            os.utime(file.fileno(), (item.modified, item.modified))
        os.fsync(file.fileno())
    partial.replace(item.target)


def too_large(bucket: Bucket, name: str, *, most: int) -> TooLargeError:
    """What `read` raises for an object above its limit."""
    return TooLargeError(
        f"{bucket.url}/{name} has more than the {most} bytes that are read of it",
        hint="look at who wrote it, and delete it",
    )


@contextlib.contextmanager
def locked(folder: Path, *, seconds: float | None = None) -> Iterator[None]:
    """Hold a folder's lock, which the kernel frees when the process dies. Raises BlockingIOError: another process has
    held it for so many seconds (None: LOCK_SECONDS)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.005)
        yield
    finally:
        os.close(descriptor)


def sync_folder(path: Path) -> None:
    """Flush a folder's entries, so that renames in it survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def disk_error(error: OSError, *, path: Path, doing: str) -> HvdcloudError:
    """What an error of the file system means to the user."""
    if isinstance(error, BlockingIOError):
        # It goes away without anybody's doing, as a network's fault does: uploads try again.
        return BucketUnreachableError(
            f"{doing} {path} failed: another process, maybe a job's, has held a folder's lock there for"
            f" {LOCK_SECONDS:g} s",
            hint="hvdcloud stop ends a cluster's job; `lslocks` and `fuser -v FOLDER` name the process",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CapacityError(f"no space left while {doing} {path}", hint="free some space and type the command again")
    return CheckpointError(
        f"{doing} {path} failed: {error.strerror or error}", hint="make the path usable and type the command again"
    )
