"""`file:///DIR`: a bucket that is a folder; the default of the local provider, bind-mounted into every node.

An object is a plain file of the same name, so a user can read the checkpoints with any tool. There are no
sidecar files: the generation is the file's modification time in nanoseconds, which is made to grow on every
replacement, and the CRC32C is computed where it is asked for. Writers in several processes and containers exclude each
other by a lock on the folder itself, held only for the moment of the rename.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import (
    PIECE,
    ChangedWhileUploadingError,
    Download,
    ObjectInfo,
    ObjectMissingError,
    PreconditionError,
    check_name,
    disk_error,
    locked,
    partial_path,
    settle,
    sync_folder,
)
from hvdcloud.storage.checksum import CHUNK, Crc32c, crc32c_of_descriptor
from hvdcloud.storage.threads import parallel

# Where objects are while they are written; on the same file system as the objects, and never listed.
TEMPORARY = ".hvdcloud-tmp"

# A file system that keeps coarser times than nanoseconds rounds a generation down; try steps that it can tell apart.
_GENERATION_STEPS_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)

_numbers = itertools.count()


class FolderBucket:
    """See Bucket. `root` need not exist before the first write."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))
        self._swept = False

    @property
    def url(self) -> str:
        return f"file://{self._root}"

    # -- reading ---------------------------------------------------------------------------------------------------

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        if folder and any(part in ("", ".", "..") for part in folder.split("/")):
            return
        yield from self._walk(self._root / folder, f"{folder}/" if folder else "", prefix)

    def _entries(self, path: Path, base: str) -> Sequence[tuple[str, os.DirEntry[str]]]:
        """What is in a folder, by its full name, sorted; nothing where there is no such folder."""
        try:
            with os.scandir(path) as entries:
                # A folder sorts as if its name ended in "/": that is the order of the full names of what is in it.
                return sorted(
                    (base + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else ""), entry)
                    for entry in entries
                    if not (base == "" and entry.name == TEMPORARY)
                )
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise disk_error(error, path=path, doing="listing") from error

    def _walk(self, path: Path, base: str, prefix: str) -> Iterator[ObjectInfo]:
        for name, entry in self._entries(path, base):
            if name.endswith("/"):
                if name.startswith(prefix) or prefix.startswith(name):
                    yield from self._walk(Path(entry.path), name, prefix)
            elif name.startswith(prefix) and entry.is_file(follow_symlinks=False):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield _info(name, status, crc32c="")

    def prefixes(self, prefix: str) -> Sequence[str]:
        return [name for name, _ in self._entries(self._root / prefix, prefix) if name.endswith("/")]

    def stat(self, name: str) -> ObjectInfo | None:
        descriptor = self._open(name)
        if descriptor is None:
            return None
        try:
            status = os.fstat(descriptor)
            size, crc32c = crc32c_of_descriptor(descriptor)
        finally:
            os.close(descriptor)
        return _info(name, status, crc32c=crc32c, size=size)

    def read(self, name: str, *, generation: int | None = None) -> bytes:
        descriptor = self._open(name)
        if descriptor is None:
            raise self._missing(name, generation)
        with os.fdopen(descriptor, "rb") as file:
            if generation not in (None, os.fstat(descriptor).st_mtime_ns):
                raise self._missing(name, generation)
            return file.read()

    def pieces(self, name: str, *, start: int = 0) -> Iterator[bytes]:
        descriptor = self._open(name)
        if descriptor is None:
            raise self._missing(name, None)
        with os.fdopen(descriptor, "rb") as file:
            file.seek(start)
            while piece := file.read(PIECE):
                yield piece

    def download_many(
        self, items: Sequence[Download], *, workers: int, on_done: Callable[[Download, Exception | None], None]
    ) -> None:
        for outcome in parallel(items, self._download, workers=workers):
            on_done(outcome.item, outcome.error)

    def _download(self, item: Download) -> None:
        descriptor = self._open(item.name)
        if descriptor is None:
            raise self._missing(item.name, item.generation)
        partial = partial_path(item.target)
        try:
            with os.fdopen(descriptor, "rb", buffering=0) as source:
                if item.generation not in (None, os.fstat(descriptor).st_mtime_ns):
                    raise self._missing(item.name, item.generation)
                item.target.parent.mkdir(parents=True, exist_ok=True)
                with partial.open("xb") as file:
                    while data := source.read(CHUNK):
                        file.write(data)
            settle(partial, item)
        except OSError as error:
            raise disk_error(error, path=item.target, doing="writing") from error
        finally:
            partial.unlink(missing_ok=True)

    def _open(self, name: str) -> int | None:
        parts = check_name(name)
        if parts[0] == TEMPORARY:
            return None
        path = self._root.joinpath(*parts)
        try:
            # O_NONBLOCK: a FIFO in the folder must not stop us.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG):
                return None
            raise disk_error(error, path=path, doing="reading") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        return descriptor

    def _missing(self, name: str, generation: int | None) -> ObjectMissingError:
        which = name if generation is None else f"{name} at generation {generation}"
        return ObjectMissingError(f"{self.url} has no object {which}", hint="hvdcloud pull")

    # -- writing ---------------------------------------------------------------------------------------------------

    def upload(
        self, path: Path, name: str, *, if_generation: int | None = None, crc32c: str | None = None
    ) -> ObjectInfo:
        def copy(out: IO[bytes]) -> Crc32c:
            crc = Crc32c()
            try:
                with path.open("rb", buffering=0) as source:
                    while data := source.read(CHUNK):
                        crc.update(data)
                        out.write(data)
            except FileNotFoundError as error:
                raise ChangedWhileUploadingError(f"{path} is gone", hint="it is uploaded if it comes back") from error
            if crc32c not in (None, crc.text()):
                hint = "it is uploaded once it stops changing"
                raise ChangedWhileUploadingError(f"{path} changed while it was read", hint=hint)
            return crc

        return self._store(name, copy, if_generation=if_generation)

    def write(self, name: str, data: bytes, *, if_generation: int | None = None) -> ObjectInfo:
        def copy(out: IO[bytes]) -> Crc32c:
            crc = Crc32c()
            crc.update(data)
            out.write(data)
            return crc

        return self._store(name, copy, if_generation=if_generation)

    def _store(self, name: str, copy: Callable[[IO[bytes]], Crc32c], *, if_generation: int | None) -> ObjectInfo:
        parts = check_name(name)
        if parts[0] == TEMPORARY:
            raise CheckpointError(f"{self.url} can't hold an object named {name}", hint="rename the file")
        target = self._root.joinpath(*parts)
        try:
            with self._temporary() as (path, file):
                crc = copy(file)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                self._give(file.fileno())
                os.fsync(file.fileno())
                self._make_folders(target.parent)
                status = self._commit(path, target, name=name, if_generation=if_generation)
            sync_folder(target.parent)
        except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
            raise CheckpointError(
                f"{self.url} can't hold {name}: a folder can't have a file and a folder of one name",
                hint="rename one of the two checkpoints, or use a gs:// bucket",
            ) from error
        except OSError as error:
            raise disk_error(error, path=target, doing="writing") from error
        return _info(name, status, crc32c=crc.text(), size=crc.size)

    def _commit(self, path: Path, target: Path, *, name: str, if_generation: int | None) -> os.stat_result:
        """Make the object visible: check the generation, give the new one, rename."""
        with locked(self._root):
            try:
                present = target.lstat()
            except (FileNotFoundError, NotADirectoryError):
                current = 0
            else:
                if stat.S_ISDIR(present.st_mode):
                    raise IsADirectoryError(errno.EISDIR, "is a folder", str(target))
                current = present.st_mtime_ns
            if if_generation not in (None, current):
                raise PreconditionError(
                    f"{name} in {self.url} is at generation {current}, not {if_generation}",
                    hint="another process wrote it; hvdcloud status shows the cluster",
                )
            for step in _GENERATION_STEPS_NS:
                generation = max(time.time_ns(), current + step)
                os.utime(path, ns=(generation, generation))
                status = path.stat()
                if status.st_mtime_ns > current:
                    break
            else:
                raise CheckpointError(
                    f"the file system of {self.url} does not keep modification times, which are our generations",
                    hint="put the folder on a local disk, or use a gs:// bucket",
                )
            if if_generation == 0:
                self._create(path, target, name=name)
            else:
                path.replace(target)
            return status

    def _create(self, path: Path, target: Path, *, name: str) -> None:
        """Give `path` its name unless that is taken: exclusive even where a shared folder doesn't pass on our lock."""
        try:
            target.hardlink_to(path)
        except FileExistsError as error:
            raise PreconditionError(
                f"{name} in {self.url} exists already", hint="hvdcloud status shows the cluster"
            ) from error
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
                raise
            path.replace(target)  # no hard links here: the lock alone has to do

    @contextlib.contextmanager
    def _temporary(self) -> Iterator[tuple[Path, IO[bytes]]]:
        """A new file that is removed unless it was renamed, now or, after a kill -9, by the next writer."""
        folder = self._root / TEMPORARY
        self._make_folders(folder)
        if not self._swept:
            self._swept = True
            _sweep(folder)
        while True:
            path = folder / f"{os.getpid()}-{time.time_ns():x}-{next(_numbers)}"
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                continue
            # The lock tells a file that is being written from one that a killed process left. It is taken after the
            # file appeared, so another writer's sweep may have been quicker: then make another one.
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)
        with os.fdopen(descriptor, "wb") as file:
            try:
                yield path, file
            finally:
                path.unlink(missing_ok=True)

    def _make_folders(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self._root.mkdir(parents=True, exist_ok=True)
        path = self._root
        for part in folder.relative_to(self._root).parts:
            path /= part
            try:
                path.mkdir(mode=0o755)
            except FileExistsError:
                if not path.is_dir():
                    raise
                continue
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                self._give(descriptor)
            finally:
                os.close(descriptor)

    def _give(self, descriptor: int) -> None:
        """Give it to the folder's owner: the laptop's user must be able to delete what root in a container wrote."""
        if os.geteuid() == 0:
            owner = self._root.stat()
            os.fchown(descriptor, owner.st_uid, owner.st_gid)


def _sweep(folder: Path) -> None:
    """Remove what writers that were killed left behind."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(entry.path).unlink(missing_ok=True)
            except BlockingIOError:
                continue
            finally:
                os.close(descriptor)


def _info(name: str, status: os.stat_result, *, crc32c: str, size: int | None = None) -> ObjectInfo:
    return ObjectInfo(
        name=name,
        size=status.st_size if size is None else size,
        crc32c=crc32c,
        generation=status.st_mtime_ns,
        updated=status.st_mtime,
    )
