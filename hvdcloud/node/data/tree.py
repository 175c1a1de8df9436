"""The files of a data set while they are fetched, and the move by which they become the set.

Beside the sets, in `.hvdcloud/NAME`: `tree`, which becomes the set; `listing`, what it is to consist of; `ranges`,
which parts of large objects it has; `boot`, since when all of that was written; and `index-INODE`, the listing of the
set whose folder has this inode, so that no crash between two moves makes a set pass for another.

A file of the tree has its object's generation as modification time once its bytes are verified, and only then.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from hvdcloud.node import paths
from hvdcloud.storage.base import sync_folder

FILE_MODE = 0o444
FOLDER_MODE = 0o555
WRITE_OUT_SECONDS = 1.0
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Generations below are microseconds since the epoch, as Cloud Storage's; a folder's are nanoseconds.
_MICROSECONDS = 10**17


def set_dir(name: str) -> Path:
    """Where the ranks find the set."""
    return paths.data_dir() / name


def work_dir(name: str) -> Path:
    """What the fetcher has of a set beside it."""
    return paths.data_dir() / ".hvdcloud" / name


def tree_dir(name: str) -> Path:
    """What becomes the set."""
    return work_dir(name) / "tree"


def index_file(name: str) -> Path | None:
    """The listing of the set that the ranks find; None: there is no set, or another one."""
    try:
        found = work_dir(name) / f"index-{set_dir(name).stat().st_ino}"
    except FileNotFoundError:
        return None
    return found if found.is_file() else None


def time_of(generation: int) -> int:
    """The modification time, in nanoseconds, of a file that is verified to be this generation."""
    return generation * 1000 if generation < _MICROSECONDS else generation


def mark(descriptor: int, generation: int) -> None:
    """Say that the file's bytes are verified."""
    os.utime(descriptor, ns=(time_of(generation), time_of(generation)))


def is_marked(path: str, *, size: int, generation: int) -> bool:
    """Whether a verified file of this generation exists."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (size, time_of(generation))


def survived_boot(name: str) -> bool:
    """Whether the tree was begun since this machine started: else what came last may not have reached the disk."""
    try:
        return (work_dir(name) / "boot").read_text() == _BOOT_ID.read_text()
    except FileNotFoundError:
        return False


def note_boot(name: str) -> None:
    """For `survived_boot`."""
    (work_dir(name) / "boot").write_text(_BOOT_ID.read_text())


class WriteOut:
    """Writes a set's tree out to the disk while it grows, which the kernel would begin with much later; a context.

    Args:
        sync: as `syncfs`, of a descriptor.
    """

    def __init__(self, name: str, *, sync: Callable[[int], None] | None = None) -> None:
        self._tree = tree_dir(name)
        self._sync = sync or _sync_file_system
        self._error: OSError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hvdcloud-data-write-out", daemon=True)

    def __enter__(self) -> WriteOut:
        # The kernel tells a descriptor of what has failed since it was opened.
        self._descriptor = os.open(self._tree, os.O_RDONLY)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        os.close(self._descriptor)

    def finish(self) -> None:
        """Return once all of the tree is on the disk. Raises OSError: some of it is not; then the tree is removed."""
        self._stop()
        try:
            if self._error is not None:
                raise self._error
            self._sync(self._descriptor)
        except OSError:
            # What the disk did not take may look right until memory is needed for something else.
            remove_tree(self._tree)
            raise

    def _stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        try:
            while not self._ended.wait(WRITE_OUT_SECONDS):
                self._sync(self._descriptor)
        except OSError as error:
            self._error = error


def make_visible(name: str, written: WriteOut) -> None:
    """Make the tree the set, in one move, once all of it is on the disk; removes the one before. Raises OSError."""
    work, tree, target = work_dir(name), tree_dir(name), set_dir(name)
    for folder, _, _ in os.walk(tree):
        Path(folder).chmod(FOLDER_MODE)
    index = work / f"index-{tree.stat().st_ino}"
    shutil.copyfile(work / "listing", index)
    written.finish()
    # A folder's own entry for its parent changes with the move, which needs the right to write to it.
    tree.chmod(0o755)
    if target.exists():
        _exchange(tree, target)
    else:
        tree.rename(target)
    target.chmod(FOLDER_MODE)
    sync_folder(target.parent)
    clean(name)


def clean(name: str) -> None:
    """Remove whatever is no part of the set that the ranks find."""
    work, kept = work_dir(name), index_file(name)
    for each in _entries(work):
        if each == kept:
            continue
        if each.is_dir() and not each.is_symlink():
            remove_tree(each)
        else:
            each.unlink()


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, although it is read-only; nothing where there is none."""
    with contextlib.suppress(FileNotFoundError):
        if os.geteuid() != 0:
            for folder, _, _ in os.walk(path):
                Path(folder).chmod(0o755)
        shutil.rmtree(path)


def _entries(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(FileNotFoundError):
        yield from list(folder.iterdir())


def _exchange(tree: Path, target: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    code = libc.renameat2(_AT_FDCWD, os.fsencode(tree), _AT_FDCWD, os.fsencode(target), _RENAME_EXCHANGE)
    if code == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), os.fspath(target))
    # A file system that cannot: for a moment there is no set, but never half of one.
    aside = tree.with_name("aside")
    remove_tree(aside)
    target.rename(aside)
    tree.rename(target)


def _sync_file_system(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
