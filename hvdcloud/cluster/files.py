"""Files of the state folder: private, replaced in one move, locked.

The state folder is `$XDG_STATE_HOME/hvdcloud` (default `~/.local/state/hvdcloud`), or `$HVDCLOUD_STATE_DIR`. What is in
it opens nodes and says which hosts they are, so nothing in it may be another user's, or a link to elsewhere.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import stat
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


def check_folder(folder: Path) -> None:
    """Raise UsageError if a folder below the state folder, or one above it there, is a link or another user's."""
    root = state_root()
    inner = [each for each in (folder, *folder.parents) if root in each.parents]
    for path in (root, *reversed(inner)):
        try:
            # The state folder itself may be a link: to another disk, say.
            status = path.stat() if path == root else path.lstat()
        except OSError:
            return
        if stat.S_ISLNK(status.st_mode):
            hint = f"rm {shlex.quote(str(path))}, or name another folder with HVDCLOUD_STATE_DIR"
            raise UsageError(f"{path} is a link, and the folder of a cluster's keys may be none", hint=hint)
        if status.st_uid != os.geteuid():
            hint = f"sudo chown -R {os.geteuid()} {shlex.quote(str(path))}, or name another with HVDCLOUD_STATE_DIR"
            raise UsageError(f"{path} belongs to user {status.st_uid}, who could put other keys there", hint=hint)


def make_folder(folder: Path) -> None:
    """Make a folder of the state folder, readable by its owner only. Raises what `explained` and `check_folder` do."""
    check_folder(folder)
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        check_folder(folder)
        if stat.S_IMODE(folder.stat().st_mode) & 0o077:
            folder.chmod(0o700)


def open_private(path: Path, flags: int) -> int:
    """A descriptor of a file of this user's, which is not a link; made readable by its owner only.

    Raises OSError: it cannot be opened, or it is something else.
    """
    # O_NONBLOCK: a FIFO must not stop us.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it is not a file of this user's", str(path))
        if flags & os.O_CREAT and stat.S_IMODE(status.st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: Path) -> str:
    """The text of a file of this user's. Raises OSError, also for a link; UnicodeDecodeError."""
    with os.fdopen(open_private(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


def write_private(path: Path, data: str) -> None:
    """Replace a file in one move; only its owner may read it. Raises what `explained` and `check_folder` raise."""
    check_folder(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with explained(path):
        try:
            # What a killed process of this number has left, or another process has put there, is not written to.
            temporary.unlink(missing_ok=True)
            with os.fdopen(open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w") as file:
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
