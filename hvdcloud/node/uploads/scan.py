"""What files are in a folder that is uploaded, and how to tell that one has changed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

from hvdcloud.checkpoints.manifest import usual_time
from hvdcloud.checkpoints.names import checkpoint_name, object_safe, refusals, sentences
from hvdcloud.storage.base import PARTIAL_SUFFIX


@dataclass(frozen=True, slots=True)
class Signature:
    """What changes when a file changes."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One regular file."""

    name: str  # of the object, without the node's folder
    path: Path  # without symbolic links
    signature: Signature
    modified: float


def signature_of(status: os.stat_result) -> Signature:
    return Signature(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def walk(
    directory: Path,
    skipped: list[str],
    *,
    named: Callable[[str], str] = checkpoint_name,
    leave_out: Callable[[str], bool] = lambda name: False,
) -> list[File]:
    """All regular files below that can be checkpoints, also through symbolic links that stay below.

    Args:
        skipped: is given sentences about what is left out on purpose.
        named: makes the name of an object of a path relative to the directory.
        leave_out: whether a file or folder of this name does not count.
    """
    root = os.path.realpath(directory)
    files: list[File] = []

    # Not by recursion: a job can make more levels than Python has. Each with the folders above it, without links.
    folders: list[tuple[str, str, tuple[str, ...]]] = [(root, "", (root,))]
    while folders:
        folder, prefix, above = folders.pop()
        try:
            with os.scandir(folder) as entries:
                found = list(entries)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in found:
            name = prefix + entry.name
            if (entry.name.startswith(".") and entry.name.endswith(PARTIAL_SUFFIX)) or leave_out(entry.name):
                continue
            path = entry.path
            try:
                if entry.is_symlink():
                    path = os.path.realpath(entry.path)
                    if not f"{path}/".startswith(f"{root}/"):
                        if os.path.lexists(path):
                            skipped.append(f"{named(name)} is a symbolic link to {path}, outside its folder")
                        continue
                status = os.lstat(path)
            except OSError:
                continue  # gone, or a link that leads nowhere
            if stat.S_ISDIR(status.st_mode):
                if path not in above:
                    folders.append((path, f"{name}/", (*above, path)))
            elif stat.S_ISREG(status.st_mode):
                modified = usual_time(status.st_mtime)
                files.append(File(name=name, path=Path(path), signature=signature_of(status), modified=modified))
    return _with_object_names(files, skipped, named)


def _with_object_names(files: Collection[File], skipped: list[str], named: Callable[[str], str]) -> list[File]:
    """The files that can be objects, named as these."""
    refused = refusals(file.name for file in files)
    skipped += sentences(refused, "not uploaded")
    taken: set[str] = set()
    found: list[File] = []
    # A name that can be an object's is not given to another file.
    safe = {file.name: object_safe(file.name) for file in files if file.name not in refused}
    for file in sorted((file for file in files if file.name in safe), key=lambda file: safe[file.name] != file.name):
        name = named(safe[file.name])
        while name in taken:
            name += "~"
        taken.add(name)
        found.append(replace(file, name=name))
    return found
