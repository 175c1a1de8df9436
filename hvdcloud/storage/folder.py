"""`file:///DIR`: a bucket that is a folder; the default of the local provider, bind-mounted into every node.

An object is a plain file of the same name, so a user can read the checkpoints with any tool. There are no
sidecar files: the generation is the file's modification time in nanoseconds, which is made to grow on every
replacement, and the CRC32C is computed where it is asked for. Writers in several processes and containers exclude each
other by a lock on the folder itself, held only for the moment of the rename.

A job can put anything into the folder while we work in it: folder_tree.py opens and makes what is below it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from hvdcloud.errors import CheckpointError
from hvdcloud.storage.base import (
    MOST_READ,
    PIECE,
    CorruptObjectError,
    Download,
    ObjectInfo,
    ObjectMissingError,
    PreconditionError,
    changed,
    check_name,
    disk_error,
    locked,
    partial_path,
    settle,
    too_large,
    vanished,
)
from hvdcloud.storage.checksum import CHUNK, Crc32c, crc32c_of_descriptor, open_plain
from hvdcloud.storage.folder_tree import LEADS_NOWHERE, TEMPORARY, FolderTree, Temporary
from hvdcloud.storage.threads import parallel

# A file system that keeps coarser times than nanoseconds rounds a generation down; try steps that it can tell apart.
_GENERATION_STEPS_NS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)


class FolderBucket:
    """See Bucket. `root` need not exist before the first write; as an attribute, it has no links on the way to it."""

    write_once = False

    def __init__(self, root: Path) -> None:
        self._tree = FolderTree(root)
        self.root = self._tree.root

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    # -- reading ---------------------------------------------------------------------------------------------------

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        if folder and any(part in ("", ".", "..") for part in folder.split("/")):
            return
        # One for each level, since a job can make more levels than Python has.
        levels = [iter(self._entries(f"{folder}/" if folder else "", prefix))]
        while levels:
            name, status = next(levels[-1], (None, None))
            if name is None:
                levels.pop()
            elif status is None:
                levels.append(iter(self._entries(name, prefix)))
            else:
                yield _info(name, status, crc32c="")

    def prefixes(self, prefix: str) -> Sequence[str]:
        return [name for name, status in self._entries(prefix, prefix) if status is None]

    def _entries(self, base: str, prefix: str) -> Sequence[tuple[str, os.stat_result | None]]:
        """What can be or hold an object in a folder ("" or ending in "/"), by its full name and sorted; a folder's name
        ends in "/", and it has no status. Nothing where there is no such folder."""
        found: dict[str, os.stat_result | None] = {}
        try:
            with self._tree.folder(base.split("/")[:-1]) as folder, os.scandir(folder) as entries:
                for entry in entries:
                    # A folder sorts as if its name ended in "/": that is the order of the full names of what is in it.
                    is_folder = entry.is_dir(follow_symlinks=False)
                    name = f"{base}{entry.name}/" if is_folder else base + entry.name
                    if name == f"{TEMPORARY}/" or not _is_name(base + entry.name):
                        continue
                    if is_folder and (name.startswith(prefix) or prefix.startswith(name)):
                        found[name] = None
                    elif name.startswith(prefix) and entry.is_file(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):
                            found[name] = entry.stat(follow_symlinks=False)
        except OSError as error:
            if error.errno in LEADS_NOWHERE:
                return []
            raise disk_error(error, path=self.root / base, doing="listing") from error
        return sorted(found.items(), key=lambda item: item[0])

    def stat(self, name: str) -> ObjectInfo | None:
        descriptor = self._open(name)
        if descriptor is None:
            return None
        with os.fdopen(descriptor, "rb", buffering=0):
            status = os.fstat(descriptor)
            size, crc32c = crc32c_of_descriptor(descriptor)
        return _info(name, status, crc32c=crc32c, size=size)

    def read(self, name: str, *, generation: int | None = None, most: int = MOST_READ) -> bytes:
        with os.fdopen(self.descriptor(name, generation=generation), "rb") as file:
            # Not to its end, which a writer may move on and on.
            length = os.fstat(file.fileno()).st_size
            if length > most:
                raise too_large(self, name, most=most)
            return file.read(length)

    def descriptor(self, name: str, *, generation: int | None = None) -> int:
        """Of the object's file, for reading; to be closed.

        Raises ObjectMissingError: no such object, or not at that generation.
        """
        found = self._open(name)
        if found is not None:
            if generation in (None, os.fstat(found).st_mtime_ns):
                return found
            os.close(found)
        which = name if generation is None else f"{name} at generation {generation}"
        raise ObjectMissingError(f"{self.url} has no object {which}", hint="hvdcloud pull")

    def pieces(self, name: str, *, start: int = 0) -> Iterator[bytes]:
        with os.fdopen(self.descriptor(name), "rb") as file:
            file.seek(start)
            while piece := file.read(PIECE):
                yield piece

    def download_many(
        self, items: Sequence[Download], *, workers: int, on_done: Callable[[Download, Exception | None], None]
    ) -> None:
        for outcome in parallel(items, self._download, workers=workers):
            on_done(outcome.item, outcome.error)

    def _download(self, item: Download) -> None:
        descriptor = self.descriptor(item.name, generation=item.generation)
        partial = partial_path(item.target)
        try:
            with os.fdopen(descriptor, "rb", buffering=0) as source:
                item.target.parent.mkdir(parents=True, exist_ok=True)
                with partial.open("xb") as file:
                    # One byte more shows that it is another file; all of it could fill this disk.
                    left = item.size + 1
                    while left and (data := source.read(min(CHUNK, left))):
                        file.write(data)
                        left -= len(data)
            settle(partial, item)
        except OSError as error:
            raise disk_error(error, path=item.target, doing="writing") from error
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()

    def _open(self, name: str) -> int | None:
        """A descriptor of the object's file; None: there is no such object."""
        parts = check_name(name)
        if parts[0] == TEMPORARY:
            return None
        try:
            return self._tree.open_file(parts)
        except OSError as error:
            raise disk_error(error, path=self.root / name, doing="reading") from error

    # -- writing ---------------------------------------------------------------------------------------------------

    def upload(
        self,
        path: Path,
        name: str,
        *,
        if_generation: int | None = None,
        crc32c: str | None = None,
    ) -> ObjectInfo:
        def check(crc: Crc32c) -> None:
            if crc32c not in (None, crc.text()):
                raise changed(path)

        return self._store(name, _content(path), check=check, if_generation=if_generation)

    def write(self, name: str, data: bytes, *, if_generation: int | None = None) -> ObjectInfo:
        return self._store(name, [data], check=lambda crc: None, if_generation=if_generation)

    def receive(self, original: ObjectInfo, content: Iterable[bytes]) -> None:
        """Store the copy of an object of another folder bucket, at exactly the generation that it has there, by which a
        manifest names it.

        Raises CorruptObjectError: other bytes come than those that its size and its CRC32C, if that is known, promise.
        """

        def check(crc: Crc32c) -> None:
            if crc.size != original.size or original.crc32c not in ("", crc.text()):
                raise CorruptObjectError(
                    f"{original.name} does not verify: {original.size} bytes with CRC32C {original.crc32c} were "
                    f"promised, {crc.size} bytes with {crc.text()} came",
                    hint="hvdcloud pull tries again; if it stays so, take an earlier checkpoint",
                )

        self._store(original.name, content, check=check, generation=original.generation)

    def _store(
        self,
        name: str,
        content: Iterable[bytes],
        *,
        check: Callable[[Crc32c], None],
        if_generation: int | None = None,
        generation: int | None = None,
    ) -> ObjectInfo:
        parts = check_name(name)
        *folders, last = parts
        if parts[0] == TEMPORARY:
            raise CheckpointError(f"{self.url} can't hold an object named {name}", hint="rename the file")
        try:
            with self._tree.temporary() as temporary:
                crc = Crc32c()
                for data in content:
                    crc.update(data)
                    temporary.file.write(data)
                check(crc)
                temporary.file.flush()
                os.fchmod(temporary.file.fileno(), 0o644)
                self._tree.give(temporary.file.fileno())
                os.fsync(temporary.file.fileno())
                with self._tree.folder(folders, make=True) as folder:
                    status = self._commit(
                        temporary, last, folder, name, if_generation=if_generation, generation=generation
                    )
                    os.fsync(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP):
                raise disk_error(error, path=self.root / name, doing="writing") from error
            raise CheckpointError(
                f"{self.url} can't hold {name}: a folder can't have a file and a folder of one name, and a link is"
                " not followed",
                hint="rename one of the two checkpoints, remove the link, or use a gs:// bucket",
            ) from error
        return _info(name, status, crc32c=crc.text(), size=crc.size)

    def present(self, name: str) -> tuple[int, int] | None:
        """Size and generation of an object, whose bytes are not read; None: there is no such object."""
        descriptor = self._open(name)
        if descriptor is None:
            return None
        with os.fdopen(descriptor, "rb", buffering=0):
            status = os.fstat(descriptor)
        return status.st_size, status.st_mtime_ns

    def _commit(
        self,
        temporary: Temporary,
        last: str,
        folder: int,
        name: str,
        *,
        if_generation: int | None,
        generation: int | None,
    ) -> os.stat_result:
        """Make the object visible as `last` in its folder: check the generation, give it the new one (None: a later one
        than the present), rename."""
        with locked(self.root):
            try:
                present = os.stat(last, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                current = 0
            else:
                if stat.S_ISDIR(present.st_mode):
                    raise IsADirectoryError(errno.EISDIR, "is a folder", name)
                current = present.st_mtime_ns
            if if_generation not in (None, current):
                raise PreconditionError(
                    f"{name} in {self.url} is at generation {current}, not {if_generation}",
                    hint="another process wrote it; hvdcloud status shows the cluster",
                )
            descriptor = temporary.file.fileno()
            for step in _GENERATION_STEPS_NS:
                wanted = generation or max(time.time_ns(), current + step)
                os.utime(descriptor, ns=(wanted, wanted))
                status = os.fstat(descriptor)
                if status.st_mtime_ns == generation or (generation is None and status.st_mtime_ns > current):
                    break
            else:
                raise CheckpointError(
                    f"the file system of {self.url} does not keep modification times, which are our generations",
                    hint="put the folder on a local disk, or use a gs:// bucket",
                )
            os.replace(temporary.name, last, src_dir_fd=temporary.folder, dst_dir_fd=folder)
            return status


def _content(path: Path) -> Iterator[bytes]:
    """A file, piece by piece. Raises ChangedWhileUploadingError: it is gone."""
    try:
        with open_plain(path) as source:
            while data := source.read(CHUNK):
                yield data
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise
        raise vanished(path) from error


def _is_name(name: str) -> bool:
    """Whether an object can have this name: a job makes what it likes in the folder."""
    try:
        check_name(name)
    except CheckpointError:
        return False
    return True


def _info(name: str, status: os.stat_result, *, crc32c: str, size: int | None = None) -> ObjectInfo:
    return ObjectInfo(
        name=name,
        size=status.st_size if size is None else size,
        crc32c=crc32c,
        generation=status.st_mtime_ns,
    )
