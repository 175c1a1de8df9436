"""Which checkpoints were verified on this disk, and which were not: what `down` asks before it deletes nodes.

A plain JSON file in the cluster's state folder. Losing it costs time, not checkpoints: `pull` verifies what is on disk
and writes it again.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hvdcloud.checkpoints.manifest import Entry, load_each, manifest_name
from hvdcloud.checkpoints.names import refusals
from hvdcloud.storage.base import Bucket, disk_error, locked
from hvdcloud.storage.checksum import crc32c_of_file

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One file that held the right bytes."""

    cluster: str
    run: str
    name: str
    crc32c: str
    size: int
    path: str  # Absolute, of the local file.
    mtime_ns: int  # Of the local file when it was verified; with `size`, it tells whether it is still that file.

    def key(self) -> tuple[str, str, str]:
        return (self.cluster, self.run, self.name)

    def holds(self, entry: Entry) -> bool:
        """Whether these are the bytes that a manifest promises."""
        return (self.size, self.crc32c) == (entry.size, entry.crc32c)


def has_bytes_of(path: Path, entry: Entry) -> bool:
    """Whether the file has the bytes that a manifest promises. Raises OSError: it can't be read."""
    return crc32c_of_file(path) == (entry.size, entry.crc32c)


class VerifiedFiles:
    """The file at `path`, which need not exist. Several processes may use it at once: what they add is merged.

    Raises CheckpointError: it exists and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _load(path)
        self._added: dict[tuple[str, str, str], Verified] = {}

    def get(self, *, cluster: str, run: str, name: str) -> Verified | None:
        key = (cluster, run, name)
        return self._added.get(key) or self._known.get(key)

    def names(self, *, cluster: str, run: str) -> list[str]:
        """Of the files of a run that were verified here."""
        return [key[2] for key in {**self._known, **self._added} if key[:2] == (cluster, run)]

    def add(self, entry: Verified) -> None:
        """Remember; `save` writes it."""
        if self.get(cluster=entry.cluster, run=entry.run, name=entry.name) != entry:
            self._added[entry.key()] = entry

    def save(self) -> None:
        """Write what was added, in one move.

        Raises CapacityError: the disk is full; CheckpointError: the state folder is not writable.
        """
        if not self._added:
            return
        try:
            self._write()
        except OSError as error:
            raise disk_error(error, path=self._path, doing="writing") from error
        self._added.clear()

    def _write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with locked(self._path.parent):
            self._known = {**_load(self._path), **self._added}
            value = {"version": VERSION, "verified": [asdict(entry) for entry in self._known.values()]}
            temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            try:
                temporary.write_text(json.dumps(value, separators=(",", ":")), encoding="utf-8")
                temporary.replace(self._path)
            finally:
                temporary.unlink(missing_ok=True)


def _load(path: Path) -> dict[tuple[str, str, str], Verified]:
    try:
        value: Any = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    except OSError as error:
        raise disk_error(error, path=path, doing="reading") from error
    if not isinstance(value, dict) or value.get("version") != VERSION or not isinstance(value.get("verified"), list):
        return {}
    kinds = {field.name: int if field.name in ("size", "mtime_ns") else str for field in fields(Verified)}
    found: dict[tuple[str, str, str], Verified] = {}
    for raw in value["verified"]:
        if isinstance(raw, dict) and set(raw) == set(kinds) and all(isinstance(raw[k], kinds[k]) for k in kinds):
            entry = Verified(**raw)
            found[entry.key()] = entry
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Unverified:
    """Something that would be lost."""

    run: str
    name: str  # The object's name relative to `CLUSTER/RUN/`; of a manifest where a node is meant.
    reason: str  # For the user, such as "not pulled".
    node: int | None = None  # Where what it may still hold is meant, not a file in the bucket.


def unverified(bucket: Bucket, *, cluster: str, run: str, verified_files: VerifiedFiles) -> list[Unverified]:
    """What of a run is not verified on this disk, or no longer; empty: every checkpoint of the run is safe here.

    A file that has the size and modification time it had when it was verified is trusted, any other is read again.

    Raises:
        CheckpointError: the bucket can't be reached.
    """
    manifests, bad = load_each(bucket, cluster=cluster, run=run)
    if not (manifests or bad):
        return [
            Unverified(run=run, name=manifest_name(cluster, run, 0), reason="no node has written a manifest", node=0)
        ]
    found: list[Unverified] = []
    for each in bad:
        why = f"what node {each.node} wrote is not verified: {each.error}"
        found.append(Unverified(run=run, name=each.name, reason=why, node=each.node))
    listed = [entry.name for manifest in manifests for entry in manifest.files]
    # They never come to this disk, and are in the bucket.
    refused = refusals([*listed, *verified_files.names(cluster=cluster, run=run)])
    for manifest in manifests:
        if not manifest.complete:
            name, why = manifest_name(cluster, run, manifest.node), f"node {manifest.node} has not finished uploading"
            found.append(Unverified(run=run, name=name, reason=why, node=manifest.node))
        for entry in manifest.files:
            if entry.name in refused:
                continue
            if reason := _reason(entry, verified_files.get(cluster=cluster, run=run, name=entry.name)):
                found.append(Unverified(run=run, name=entry.name, reason=reason))
    return found


def _reason(entry: Entry, known: Verified | None) -> str | None:
    if known is None:
        return "not pulled"
    if not known.holds(entry):
        return "a newer one is in the bucket"
    path = Path(known.path)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return f"{path} is not a file any more"
        if (status.st_size, status.st_mtime_ns) == (known.size, known.mtime_ns):
            return None
        if has_bytes_of(path, entry):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} was deleted"
    except OSError as error:
        return f"{path} can't be read: {error.strerror or error}"
    return f"{path} was changed after it was pulled"
