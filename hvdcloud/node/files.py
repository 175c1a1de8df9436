"""JSON files that are never half-written, and locks that a dead process cannot keep."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from hvdcloud.json_values import parse_object


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Replace `path` in one move. Raises OSError: as the system says; the old file is then still whole."""
    replace(path, json.dumps(value, ensure_ascii=True) + "\n", mode=mode)


def replace(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Replace `path` in one move; it never has looser permissions. Raises OSError: the old file is still whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None where there is no such file or it does not hold a JSON object."""
    try:
        return parse_object(path.read_bytes())
    except FileNotFoundError:
        return None


class Lock:
    """A file that one process holds; the kernel lets go of it when that process and its forks are gone.

    Its content says who holds it and is only meaningful while it is held. It is made if need be, and never removed
    (removing a lock file lets two processes hold "it").
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self, content: dict[str, Any]) -> bool:
        """Take the lock if it is free, and say who has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        os.ftruncate(descriptor, 0)
        # A full disk must not keep a run from ending: the lock itself still works.
        with contextlib.suppress(OSError):
            os.pwrite(descriptor, json.dumps(content).encode(), 0)
        return True

    def release(self) -> None:
        """Let go; harmless if not held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(path: Path) -> dict[str, Any] | None:
    """Who holds the lock at `path`: what the holder wrote ({} if it could not); None while it is free."""
    try:
        file = path.open("rb", buffering=0)
    except FileNotFoundError:
        return None
    with file:
        try:
            # Shared, so that two processes that ask at once do not take each other for the holder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return parse_object(file.read(4096)) or {}
    return None


def is_disk_full(error: OSError) -> bool:
    """Whether the write failed for lack of space."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
