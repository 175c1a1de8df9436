"""A folder into a bucket: what is there already is not sent, and what is sent is verified by the bucket.

Each object's CRC32C is promised before its bytes are sent, and Cloud Storage refuses other bytes. An object is written
only over the generation that was listed, so another writer's is never lost, and nothing is deleted. After a kill at any
point the next push lists what is there and sends the rest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hvdcloud.datasets.checksums import ChecksumIndex
from hvdcloud.datasets.names import folders_above
from hvdcloud.datasets.scan import LocalFile, Signature, has_changed
from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError
from hvdcloud.storage.base import (
    Bucket,
    BucketUnreachableError,
    ChangedWhileUploadingError,
    ObjectInfo,
    PreconditionError,
)
from hvdcloud.storage.checksum import crc32c_of_file
from hvdcloud.storage.threads import parallel

SMALL = 4 << 20
"""Files up to this size wait for round trips, not for bandwidth: many at once."""
WORKERS_SMALL = 10  # As many connections as the client keeps.
WORKERS_LARGE = 4
_ENDS_IT = (CredentialsError, BucketUnreachableError, CapacityError)
"""What the next file would meet as well."""


@dataclass(slots=True)
class Progress:
    """How far it is; safe to read from any thread."""

    bytes: int = 0
    on_phase: Callable[[str, int], object] = lambda phase, total: None
    """Called when another phase begins, with the number of its bytes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, phase: str, total_bytes: int) -> None:
        """Begin another phase of this many bytes."""
        with self._lock:
            self.bytes = 0
        self.on_phase(phase, total_bytes)

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A file that is not in the bucket as it is here."""

    name: str
    error: HvdcloudError


@dataclass(slots=True, kw_only=True)
class Pushed:
    """What has become of the files so far."""

    there: list[LocalFile] = field(default_factory=list)
    sent: list[LocalFile] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a folder and a bucket have, before a byte was read.

    Attributes:
        maybe: files whose object has the same size.
        send: files without such an object.
        extra: objects of other names, by name.
        blocked: names of files that would be folders of objects, or the reverse.
    """

    maybe: Sequence[LocalFile]
    send: Sequence[LocalFile]
    extra: Sequence[str]
    blocked: Sequence[str]


def compare(files: Sequence[LocalFile], objects: Mapping[str, ObjectInfo]) -> Comparison:
    """What has to be sent, as far as names and sizes tell; without side effects."""
    maybe: list[LocalFile] = []
    send: list[LocalFile] = []
    names, folders = set(), set[str]()
    for file in files:
        names.add(file.name)
        folders.update(folders_above(file.name, known=folders))
        known = objects.get(file.name)
        (maybe if known is not None and known.size == file.size else send).append(file)
    extra = sorted(name for name in objects if name not in names)
    above: set[str] = set()
    for name in extra:
        above.update(folders_above(name, known=above))
    blocked = sorted({*(name for name in extra if name in folders), *(names & above)})
    return Comparison(maybe=maybe, send=send, extra=extra, blocked=blocked)


def identical(
    root: Path,
    files: Sequence[LocalFile],
    objects: Mapping[str, ObjectInfo],
    *,
    bucket: Bucket,
    index: ChecksumIndex,
    stored: ChecksumIndex,
    progress: Progress,
) -> tuple[list[LocalFile], list[LocalFile]]:
    """The files whose object has the same CRC32C, and the others, also those that cannot be read now.

    Args:
        index: of the folder.
        stored: of a bucket that has to read an object for its checksum.
    """
    unread: list[LocalFile] = []
    same: set[str] = set()
    for file in files:
        here, there = index.get(file.name, file.signature), _stored(objects[file.name], stored)
        if not (here and there):
            unread.append(file)
        elif here == there:
            same.add(file.name)
    if unread:
        progress.begin("comparing", sum(file.size for file in unread))

    def read(file: LocalFile) -> tuple[str, str]:
        info = objects[file.name]
        here = index.get(file.name, file.signature) or crc32c_of_file(root / file.name)[1]
        there = _stored(info, stored)
        if there is None:
            found = bucket.stat(file.name)
            there = found.crc32c if found is not None and found.generation == info.generation else ""
        return here, there

    for outcome in parallel(unread, read, workers=WORKERS_SMALL):
        file, pair = outcome.item, outcome.result
        progress.add(file.size)
        if isinstance(outcome.error, HvdcloudError):
            raise outcome.error
        # Of one that cannot be read, or changes, it is said when it is to be sent.
        if pair is not None and not has_changed(root, file):
            index.put(file.name, file.signature, pair[0])
            stored.put(file.name, _signature(objects[file.name]), pair[1], settled=True)
            if pair[0] == pair[1]:
                same.add(file.name)
    return [file for file in files if file.name in same], [file for file in files if file.name not in same]


def send(
    root: Path,
    files: Sequence[LocalFile],
    objects: Mapping[str, ObjectInfo],
    *,
    bucket: Bucket,
    index: ChecksumIndex,
    stored: ChecksumIndex,
    progress: Progress,
    pushed: Pushed,
) -> None:
    """Upload these files; what becomes of each is added to `pushed` as it ends.

    Raises CredentialsError, BucketUnreachableError or CapacityError: no other file would fare better.
    """
    if files:
        progress.begin("sending", sum(file.size for file in files))

    def upload(file: LocalFile) -> tuple[str, ObjectInfo | None]:
        path = root / file.name
        if has_changed(root, file):
            raise _changed_error(path)
        crc32c = index.get(file.name, file.signature) or crc32c_of_file(path)[1]
        known = objects.get(file.name)
        try:
            info = bucket.upload(
                path,
                file.name,
                if_generation=known.generation if known is not None else 0,
                crc32c=crc32c,
                on_read=progress.add,
            )
        except PreconditionError:
            # Another push of the same folder may have been quicker.
            found = bucket.stat(file.name)
            if found is None or (found.size, found.crc32c) != (file.size, crc32c):
                raise
            return crc32c, None
        if has_changed(root, file):
            raise _changed_error(path)
        return crc32c, info

    for group, workers in (
        ([file for file in files if file.size <= SMALL], WORKERS_SMALL),
        ([file for file in files if file.size > SMALL], WORKERS_LARGE),
    ):
        for outcome in parallel(group, upload, workers=workers):
            file, error = outcome.item, outcome.error
            if outcome.result is not None:
                crc32c, info = outcome.result
                index.put(file.name, file.signature, crc32c)
                if info is not None:
                    stored.put(file.name, _signature(info), crc32c, settled=True)
                (pushed.sent if info is not None else pushed.there).append(file)
            elif isinstance(error, _ENDS_IT):
                raise error
            else:
                if isinstance(error, ChangedWhileUploadingError):
                    index.forget([file.name])
                pushed.failed.append(Failure(name=file.name, error=_explained(root / file.name, error)))


def _changed_error(path: Path) -> ChangedWhileUploadingError:
    return ChangedWhileUploadingError(f"{path} changed or vanished meanwhile", hint="push again once nothing writes it")


def _explained(path: Path, error: Exception | None) -> HvdcloudError:
    if isinstance(error, HvdcloudError):
        return error
    if isinstance(error, OSError):
        return ChangedWhileUploadingError(
            f"{path} cannot be read: {error.strerror or error}", hint="make it readable and push again"
        )
    raise error or AssertionError("neither a result nor an error")


def _stored(info: ObjectInfo, stored: ChecksumIndex) -> str | None:
    """The object's CRC32C as the listing has it, or as it was read before."""
    return info.crc32c or stored.get(info.name, _signature(info))


def _signature(info: ObjectInfo) -> Signature:
    return Signature(info.size, info.generation, 0)
