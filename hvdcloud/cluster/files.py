"""Files of the state folder: private, replaced in one move, locked.

The state folder is `$XDG_STATE_HOME/hvdcloud` (default `~/.local/state/hvdcloud`), or `$HVDCLOUD_STATE_DIR`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from hvdcloud.errors import CapacityError, UsageError


def state_root() -> Path:
    """The folder that holds one folder per cluster."""
    if given := os.environ.get("HVDCLOUD_STATE_DIR"):
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "hvdcloud"


def default_bucket(name: str) -> str:
    """The folder used as the bucket where none is configured. It outlives the cluster."""
    return (state_root() / name / "bucket").as_uri()


def write_private(path: Path, data: str) -> None:
    """Replace a file in one move; only its owner may read it. Raises what `explained` raises."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with explained(path):
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def held(file: int, command: str, *, what: str, hint: str) -> Iterator[None]:
    """Hold a lock during the block. It ends with the process, so a killed one leaves none behind.

    Args:
        file: open to read and write; closed at the end.
        command: what holds it, and `what` is being changed: for the others' message.

    Raises:
        UsageError: another process holds it.
    """
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(file, 1000).decode(errors="replace").strip() or "another command"
            raise UsageError(f"{what} by {holder}", hint=hint) from None
        os.truncate(file, 0)
        # The holder is for a message only: the lock holds on a full disk too.
        with contextlib.suppress(OSError):
            os.write(file, f"`hvdcloud {command}` (process {os.getpid()})".encode())
        try:
            yield
        finally:
            os.truncate(file, 0)
    finally:
        os.close(file)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Raise the file system's errors during the block as CapacityError (the disk is full) or UsageError."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CapacityError(
                f"no space left to write {path}",
                hint="free some space, or name a folder on another disk with HVDCLOUD_STATE_DIR",
            ) from error
        raise UsageError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="make it writable, or name another folder with HVDCLOUD_STATE_DIR",
        ) from error
