"""Which checkpoints were verified on this disk, and where: what `down` asks before it lets a bucket's node go.

A plain JSON file in the cluster's state folder. Losing it costs time, not checkpoints: `pull` verifies what is on disk
again and writes it anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hvdcloud.storage.base import disk_error

VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One file that held the right bytes.

    Args:
        path: absolute, of the local file.
        mtime_ns: of the local file at the moment of verification; with `size`, it tells whether it is still that file.
    """

    cluster: str
    run: str
    name: str
    generation: int
    crc32c: str
    size: int
    path: str
    mtime_ns: int

    def key(self) -> tuple[str, str, str]:
        return (self.cluster, self.run, self.name)


class VerifiedFiles:
    """The file at `path`, which need not exist. Several processes may use it at once: what they add is merged.

    Raises:
        CheckpointError: it exists and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _load(path)
        self._added: dict[tuple[str, str, str], Verified] = {}

    def get(self, *, cluster: str, run: str, name: str) -> Verified | None:
        key = (cluster, run, name)
        return self._added.get(key) or self._known.get(key)

    def add(self, entry: Verified) -> None:
        """Remember; `save` writes it."""
        if self.get(cluster=entry.cluster, run=entry.run, name=entry.name) != entry:
            self._added[entry.key()] = entry

    def save(self) -> None:
        """Write what was added, in one move.

        Raises:
            CapacityError: the disk is full.  CheckpointError: the state folder is not writable.
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
        with _locked(self._path.parent):
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
    kinds = {field.name: int if field.name in ("generation", "size", "mtime_ns") else str for field in fields(Verified)}
    found: dict[tuple[str, str, str], Verified] = {}
    for raw in value["verified"]:
        if isinstance(raw, dict) and set(raw) == set(kinds) and all(isinstance(raw[k], kinds[k]) for k in kinds):
            entry = Verified(**raw)
            found[entry.key()] = entry
    return found


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Held for the time of a small read and write."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
