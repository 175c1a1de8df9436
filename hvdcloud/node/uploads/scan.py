"""What is in a checkpoint directory, and how to tell that a file has changed."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.checkpoints.manifest import usual_time
from hvdcloud.checkpoints.names import refusals, sentences
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

    name: str  # relative to the directory
    path: Path  # without symbolic links
    signature: Signature
    modified: float


def signature_of(status: os.stat_result) -> Signature:
    return Signature(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def walk(directory: Path, skipped: list[str]) -> list[File]:
    """All regular files below that can be checkpoints, also through symbolic links that stay below.

    Args:
        skipped: is given sentences about what is left out on purpose.
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
            if entry.name.startswith(".") and entry.name.endswith(PARTIAL_SUFFIX):
                continue
            path = entry.path
            try:
                if entry.is_symlink():
                    path = os.path.realpath(entry.path)
                    if not f"{path}/".startswith(f"{root}/"):
                        if os.path.lexists(path):
                            skipped.append(f"{name} is a symbolic link to {path}, outside the checkpoint directory")
                        continue
                status = os.lstat(path)
            except OSError:
                continue  # gone, or a link that leads nowhere
            if stat.S_ISDIR(status.st_mode):
                if path not in above:
                    folders.append((path, f"{name}/", (*above, path)))
            elif stat.S_ISREG(status.st_mode):
                files.append(
                    File(
                        name=name, path=Path(path), signature=signature_of(status), modified=usual_time(status.st_mtime)
                    )
                )

    refused = refusals(file.name for file in files)
    skipped += sentences(refused, "not uploaded")
    return [file for file in files if file.name not in refused]
