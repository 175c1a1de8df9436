"""Folders for the sockets of connections: a connection has one of its own, and what killed processes left is deleted.

All of a user's are in one private folder. It is not in the state folder, whose path may be too long for a socket, or on
a disk that has none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from hvdcloud.errors import UsageError

_LONGEST_BASE = 50
"""Characters: the path of a socket may have 107, and ssh adds 17 to it while it makes one."""
_held: dict[Path, int] = {}
"""Descriptors of the folders of this process: each has a lock, which ends with the process."""


def make() -> Path:
    """A new folder, which only this user may look into; those of processes that have died are deleted.

    Raises:
        UsageError: another user has made the folder that holds them.
    """
    while True:
        # Other processes delete the parent with their last folder, and what has no lock yet.
        with contextlib.suppress(FileNotFoundError):
            parent = _parent()
            for path in parent.iterdir():
                _delete_if_dead(path)
            folder = Path(tempfile.mkdtemp(dir=parent, prefix=""))
            _held[folder] = descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if folder.exists():
                return folder
            _release(folder)


def delete(folder: Path) -> None:
    """Delete one that `make` has returned, and the folder that holds them if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    _release(folder)
    # Not empty: another connection has a folder there.
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _parent() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    usable = runtime and len(runtime) < _LONGEST_BASE and os.access(runtime, os.W_OK)
    parent = Path(runtime, "hvdcloud") if runtime and usable else Path(f"/tmp/hvdcloud-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        parent.mkdir(mode=0o700)
    status = parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise UsageError(
            f"{parent} is not a private folder of this user's, and connections would have their sockets there",
            hint=f"see who has made it: ls -ld {parent}; then delete it",
        )
    return parent


def _delete_if_dead(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        # Its process lives.
        return
    finally:
        os.close(descriptor)


def _release(folder: Path) -> None:
    if (descriptor := _held.pop(folder, None)) is not None:
        os.close(descriptor)
