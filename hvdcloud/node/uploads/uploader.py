"""From the checkpoint directory, and from the project's folder what ranks write there, to the bucket, while the run is
active. A half-written file never goes.

A file is left alone while any process has it open for writing or mapped shared and writable, and for a moment after its
last change. Then its CRC32C is taken; if its status is the same afterwards and no process writes it, the bytes are
promised to the bucket, which refuses any others. What is about to be uploaded is announced in the manifest first, and
listed in it afterwards, so that a kill -9 at any point leaves a bucket that can be verified and an uploader that can
continue. In Cloud Storage a checkpoint is never replaced: what a file is rewritten with becomes another object.
"""

from __future__ import annotations

import base64
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hvdcloud.checkpoints.manifest import Entry, object_name, run_prefix
from hvdcloud.checkpoints.names import is_checkpoint
from hvdcloud.errors import CheckpointError, CredentialsError, HvdcloudError
from hvdcloud.node.uploads.open_files import being_written
from hvdcloud.node.uploads.outputs import Outputs
from hvdcloud.node.uploads.own_manifest import OwnManifest
from hvdcloud.node.uploads.restore import read_baseline
from hvdcloud.node.uploads.scan import File, Signature, signature_of, walk
from hvdcloud.runs.reports import UploadReport
from hvdcloud.storage.base import (
    Bucket,
    BucketUnreachableError,
    ChangedWhileUploadingError,
    ObjectInfo,
    PreconditionError,
    check_name,
)
from hvdcloud.storage.checksum import crc32c_of_file
from hvdcloud.storage.threads import parallel

SMALL = 1 << 20
"""Files up to this size wait for round trips, not for bandwidth: many at once."""
WORKERS_SMALL = 8
WORKERS_LARGE = 2
_BATCH_FILES = 256
_BATCH_BYTES = 1 << 30
_WAITS = (0.05, 0.1, 0.2, 0.5, 1.0)
_SLOWEST = 10e6
"""Bytes a second at which what is left is waited for at the end."""


@dataclass(slots=True)
class _Found:
    """What one scan has found so far; names are those of objects, without the node's folder."""

    pending: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    left_out: set[str] = field(default_factory=set)
    may_pass: bool = False
    """An error may be gone at the next try."""


class _SkippedError(Exception):
    """Not tried, because the bucket has just proved unreachable."""


class _TakenError(_SkippedError):
    """The bucket has something else under this name, and it stays."""


class Uploader:
    """Keeps one directory of one run on one node in the bucket. Safe to use from several threads; one scan at a time.

    Args:
        directory: HVDCLOUD_CHECKPOINT_DIR. It may appear later.
        outputs: what ranks write elsewhere; None: that is not kept.
        uploaded: files that were uploaded before; this uploader adds its own.
        quiet_seconds: how long a file has to rest before it goes; not applied in a final scan.
    """

    def __init__(
        self,
        bucket: Bucket,
        *,
        cluster: str,
        run: str,
        node: int,
        directory: Path,
        outputs: Outputs | None = None,
        uploaded: set[str] | None = None,
        quiet_seconds: float = 1.0,
    ) -> None:
        self.uploaded = set() if uploaded is None else uploaded
        self._bucket = bucket
        self._node = node
        self._directory = directory
        self._outputs = outputs
        self._quiet = quiet_seconds
        self._prefix = run_prefix(cluster, run)
        self._lock = threading.Lock()
        self._manifest = OwnManifest(bucket, cluster=cluster, run=run, node=node)
        self._loaded = False
        self._known: dict[str, Signature] = {}
        self._arrived = 0
        """How many files have, also again."""
        self._taken: set[str] = set()
        """Names of objects that exist and are in no manifest of this node."""

    def scan(self, *, final: bool = False) -> UploadReport:
        """Upload what is ready. Network and bucket errors are in the result, not raised: the next scan tries again.

        Args:
            final: the writers have ended: don't wait until files rest; those that are open for writing still wait.
        """
        with self._lock:
            found = _Found()
            self._scan(found, final=final)
            return self._report(found)

    def _files(self, found: _Found) -> list[File]:
        files = walk(self._directory, found.skipped)
        return files + self._outputs.files(found.skipped, found.left_out) if self._outputs else files

    def _report(self, found: _Found) -> UploadReport:
        return UploadReport(
            files=len(self.uploaded),
            others=sum(not is_checkpoint(name) for name in self.uploaded),
            pending=sorted(found.pending),
            errors=found.errors,
            skipped=[*found.skipped, *([replaced] if (replaced := self._manifest.replaced) else [])],
            left_out=sorted(found.left_out),
        )

    def finish(self, seconds: float, *, patience: float = math.inf) -> UploadReport:
        """Final scans until everything is in the bucket, then mark the manifest complete.

        Args:
            seconds: after which the rest is given up where no file has arrived, even while the bucket doesn't answer;
                what is large gets more.
            patience: for how many seconds files that are being written are waited for.
        """
        last: list[UploadReport] = []
        args = (seconds, time.monotonic() + patience, last)
        thread = threading.Thread(target=self._finish, args=args, name="hvdcloud-finish", daemon=True)
        thread.start()
        before = -1
        while thread.is_alive() and before < self._arrived:
            before = self._arrived
            thread.join(seconds + sum(file.signature.size for file in self._changed(_Found())) / _SLOWEST)
        if thread.is_alive():
            pending = [file.name for file in self._changed(_Found())]
            errors = [f"{self._bucket.url} did not take everything in time"]
            return UploadReport(files=len(self.uploaded), pending=pending, errors=errors)
        if not last:
            return UploadReport(files=len(self.uploaded), errors=["a bug ended the upload; the agent's log has it"])
        return replace(last[-1], complete=not (last[-1].pending or last[-1].errors))

    def _finish(self, seconds: float, patient_until: float, last: list[UploadReport]) -> None:
        waits = iter(_WAITS)
        before, deadline = -1, 0.0
        while True:
            if before < self._arrived:
                before, deadline = self._arrived, time.monotonic() + seconds
            found = _Found()
            with self._lock:
                self._scan(found, final=True, completing=True)
            last.append(self._report(found))
            hopeless = found.errors and not found.pending and not found.may_pass
            wait = next(waits, _WAITS[-1])
            # A scan that can't begin before the deadline is not begun.
            until = deadline if found.errors else min(deadline, patient_until)
            if not (found.pending or found.errors) or hopeless or time.monotonic() + wait >= until:
                return
            time.sleep(wait)

    # -- one scan --------------------------------------------------------------------------------------------------

    def _scan(self, found: _Found, *, final: bool, completing: bool = False) -> None:
        manifest = self._manifest
        try:
            self._load()
            ready = self._ready(self._changed(found), found, final=final)
            for batch in self._batches(ready):
                if found.may_pass:
                    found.pending.extend(file.name for file in batch)
                else:
                    self._upload_batch(batch, found)
            everything = not (found.pending or found.errors)
            if everything and completing and manifest.announced:
                # Announced, perhaps sent, and then deleted here.
                manifest.adopt(list(manifest.announced.values()))
                manifest.announced.clear()
            manifest.save(complete=everything and (completing or manifest.complete))
        except (HvdcloudError, OSError) as error:
            self._fail(found, error)
            found.may_pass |= isinstance(error, OSError)
            if not self._loaded:
                found.pending.extend(file.name for file in self._changed(found))

    def _load(self) -> None:
        """Once: what an earlier uploader of this node has done."""
        if self._loaded:
            return
        baseline = read_baseline(self._directory)
        self._manifest.load(resumed=baseline["from"])
        for file in self._files(_Found()):
            entry = self._manifest.entries.get(object_name(file.name, node=self._node))
            size_and_time = [file.signature.size, file.signature.mtime_ns]
            uploaded = entry is not None and (entry.size, entry.modified) == (file.signature.size, file.modified)
            if uploaded or baseline["files"].get(file.name) == size_and_time:
                self._known[file.name] = file.signature
        self._loaded = True

    def _fail(self, found: _Found, error: Exception) -> None:
        found.errors.append(str(error))
        found.may_pass |= isinstance(error, BucketUnreachableError)

    def _changed(self, found: _Found) -> list[File]:
        """Files that are not in the bucket as they are, the one that has rested longest first: checkpoints arrive in
        the order in which they were written, a pointer to the latest after what it names."""
        files = [file for file in self._files(found) if self._known.get(file.name) != file.signature]
        return sorted(files, key=lambda file: (file.signature.mtime_ns, file.name))

    def _ready(self, files: Sequence[File], found: _Found, *, final: bool) -> list[File]:
        now = time.time()
        resting: list[File] = []
        for file in files:
            try:
                check_name(self._prefix + object_name(file.name, node=self._node))
            except CheckpointError as error:
                found.errors.append(error.message)
                continue
            # Where the clock was put back since, nobody knows how old it is.
            if final or abs(now - file.signature.ctime_ns / 1e9) >= self._quiet:
                resting.append(file)
            else:
                found.pending.append(file.name)
        return self._not_open(resting, found)

    def _not_open(self, files: Sequence[File], found: _Found) -> list[File]:
        written = being_written(((file.signature.device, file.signature.inode), str(file.path)) for file in files)
        free: list[File] = []
        for file in files:
            if (file.signature.device, file.signature.inode) in written:
                found.pending.append(file.name)
            else:
                free.append(file)
        return free

    def _batches(self, files: Sequence[File]) -> Iterator[list[File]]:
        """Each batch costs two manifests, so batches grow with the manifest."""
        batch: list[File] = []
        size = 0
        for file in files:
            batch.append(file)
            size += file.signature.size
            if len(batch) >= max(_BATCH_FILES, len(self._manifest.entries) // 4) or size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _upload_batch(self, batch: Sequence[File], found: _Found) -> None:
        promised: dict[str, Entry] = {}
        for file in batch:
            try:
                size, crc32c = crc32c_of_file(file.path)
                unchanged = signature_of(file.path.lstat()) == file.signature
            except FileNotFoundError:
                continue
            except OSError as error:
                found.errors.append(f"{file.name} can't be read: {error.strerror or error}")
                continue
            name = object_name(file.name, node=self._node)
            present = self._manifest.entries.get(name)
            if not unchanged:
                found.pending.append(file.name)
            elif present is not None and (present.size, present.crc32c) == (size, crc32c):
                self._known[file.name] = file.signature
            else:
                promised[file.name] = Entry(name=name, size=size, crc32c=crc32c, generation=0, modified=file.modified)
        # A process may have opened one since the first check; what was read may then be half of something.
        files = self._not_open([file for file in batch if file.name in promised], found)
        if not files:
            return
        # One whose answer was lost may have arrived; it is listed before a later version is announced in its place.
        names = {promised[file.name].name for file in files}
        self._manifest.adopt([entry for name, entry in self._manifest.announced.items() if name in names])
        for file in files:
            entry = promised[file.name]
            promised[file.name] = replace(entry, version=self._version(entry))
        self._manifest.announce([promised[file.name] for file in files])
        unreachable = threading.Event()

        def upload(file: File) -> ObjectInfo:
            if unreachable.is_set():
                raise _SkippedError
            entry = promised[file.name]
            try:
                return self._send(file, entry)
            except BucketUnreachableError:
                unreachable.set()
                raise

        small = [file for file in files if file.signature.size <= SMALL]
        large = [file for file in files if file.signature.size > SMALL]
        for group, workers in ((small, WORKERS_SMALL), (large, WORKERS_LARGE)):
            for outcome in parallel(group, upload, workers=workers):
                self._settle(outcome.item, promised[outcome.item.name], outcome.result, outcome.error, found)

    def _version(self, entry: Entry) -> str | None:
        """By what the object is told from earlier ones of this file; None: there are none, or it replaces them."""
        if not self._bucket.write_once or (entry.name not in self._manifest.entries and entry.name not in self._taken):
            return None
        version = base64.b64decode(entry.crc32c).hex()
        # A job can make objects under names that it foresees.
        return version if f"{entry.name}@{version}" not in self._taken else f"{version}-{os.urandom(4).hex()}"

    def _send(self, file: File, entry: Entry) -> ObjectInfo:
        name = self._prefix + entry.object
        if not self._bucket.write_once:
            return self._bucket.upload(file.path, name, crc32c=entry.crc32c)
        try:
            return self._bucket.upload(file.path, name, crc32c=entry.crc32c, if_generation=0)
        except (PreconditionError, CredentialsError):
            # There is one already, or, said in the words of rights: it may not be replaced.
            there = self._bucket.stat(name)
            if there is None:
                raise
            if (there.size, there.crc32c) == (entry.size, entry.crc32c):
                return there
            self._taken.add(entry.object)
            raise _TakenError from None

    def _settle(
        self, file: File, entry: Entry, info: ObjectInfo | None, error: Exception | None, found: _Found
    ) -> None:
        if info is not None:
            self._manifest.arrived(entry, info)
            self._known[file.name] = file.signature
            self.uploaded.add(file.name)
            self._arrived += 1
        elif isinstance(error, (ChangedWhileUploadingError, _SkippedError)):
            # Not in the bucket for sure, so it is not announced any more.
            self._manifest.announced.pop(entry.name, None)
            if file.path.exists():
                found.pending.append(file.name)
        elif error is not None:
            # It may have arrived, and only the answer been lost: it stays announced until an upload succeeds.
            self._fail(found, error)
