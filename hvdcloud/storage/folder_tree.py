"""The files below a folder in which a job can put anything while we work in it.

Every folder is opened below the one above it, by its descriptor and without following links, and what is done with a
name is done below such a descriptor: nothing outside is read, written or deleted, whatever is replaced by a link
meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hvdcloud.errors import CheckpointError

# Where files are while they are written; on the same file system as what they replace.
TEMPORARY = ".hvdcloud-tmp"
# Neither follows a link nor waits for the other end of a FIFO.
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
# What opening a name means that leads nowhere, or is a link, a socket or a device without a driver.
LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENXIO, errno.ENODEV)

_LEFT_SECONDS = 3600.0
"""A file that nothing was written to for so long has no writer any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Temporary:
    """A file that is written, and not yet where it belongs; `folder` is the descriptor of the one that it is in."""

    name: str
    folder: int
    file: IO[bytes]


class FolderTree:
    """All below `root`, which need not exist before something is made in it."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.realpath(root))
        self._swept = False

    @contextlib.contextmanager
    def folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """The descriptor of a folder below the root, each part of whose path is one.

        Raises OSError: there is none; something else, such as a link, has the name of a part.
        """
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for part in parts:
                made = make and _make_folder(part, descriptor)
                above, descriptor = descriptor, os.open(part, _FOLDER, dir_fd=descriptor)
                os.close(above)
                if made:
                    self.give(descriptor)
            yield descriptor
        finally:
            os.close(descriptor)

    def open_file(self, parts: Sequence[str]) -> int | None:
        """A descriptor of a file, for reading; None: there is none. Raises OSError: it can't be read."""
        *folders, last = parts
        try:
            with self.folder(folders) as folder:
                descriptor = os.open(last, _FILE, dir_fd=folder)
        except OSError as error:
            if error.errno in LEADS_NOWHERE:
                return None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return descriptor

    @contextlib.contextmanager
    def temporary(self) -> Iterator[Temporary]:
        """A new file, removed unless it was renamed; what a kill -9 leaves, a writer of an hour later removes."""
        with self.folder([TEMPORARY], make=True) as folder:
            self._check_owner(folder)
            if not self._swept:
                self._swept = True
                _sweep(folder)
            name = secrets.token_hex(16)
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            with os.fdopen(descriptor, "wb") as file:
                try:
                    yield Temporary(name=name, folder=folder, file=file)
                finally:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=folder)

    def _check_owner(self, folder: int) -> None:
        """Raise CheckpointError: another user could put something else in the place of what we write there."""
        owner = os.fstat(folder).st_uid
        if owner not in (os.geteuid(), self.root.stat().st_uid):
            path = self.root / TEMPORARY
            raise CheckpointError(f"{path} belongs to another user, with the id {owner}", hint=f"rm -r {path}")

    def give(self, descriptor: int) -> None:
        """Give it to the folder's owner: the laptop's user must be able to delete what root in a container wrote."""
        if os.geteuid() == 0:
            owner = self.root.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _make_folder(name: str, above: int) -> bool:
    """Make a folder unless there is one; whether it was made. Raises OSError: it can't be."""
    try:
        os.mkdir(name, 0o755, dir_fd=above)
    except FileExistsError:
        return False
    return True


def _sweep(folder: int) -> None:
    """Remove what writers that were killed left behind: files only, whatever else is there."""
    with os.scandir(folder) as entries:
        for entry in entries:
            # It may be gone: another process was quicker.
            with contextlib.suppress(OSError):
                idle = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if entry.is_file(follow_symlinks=False) and idle > _LEFT_SECONDS:
                    os.unlink(entry.name, dir_fd=folder)
