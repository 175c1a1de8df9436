"""The files of a folder that can be objects of a bucket, and what stays behind and why."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hvdcloud.checkpoints.names import refusals
from hvdcloud.datasets.names import NameProblem, Problem, is_safe
from hvdcloud.private_files import private_part
from hvdcloud.storage.base import PARTIAL_SUFFIX
from hvdcloud.storage.folder_tree import TEMPORARY


@dataclass(frozen=True, slots=True)
class Signature:
    """What tells whether a file has changed."""

    size: int
    modified: int  # Nanoseconds since the epoch.
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        """That of a file with this status."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ino)


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file as it was found; its name is relative to the folder and is that of its object."""

    name: str
    signature: Signature

    @property
    def size(self) -> int:
        """Bytes."""
        return self.signature.size


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderScan:
    """What a folder holds."""

    files: Sequence[LocalFile]  # By name.
    left_out: Sequence[NameProblem]

    @property
    def bytes(self) -> int:
        """The size of all files together."""
        return sum(file.size for file in self.files)


def scan(root: Path, *, prefix: str = "", private: bool = False) -> FolderScan:
    """The files below a folder; links are not followed.

    Args:
        prefix: what the bucket puts in front of a name, which counts for how long one may be.
        private: files that look like credentials are sent as well.

    Raises OSError: the folder itself cannot be read.
    """
    files: list[LocalFile] = []
    left_out: list[NameProblem] = []
    folders = [""]
    os.listdir(root)
    while folders:
        base = folders.pop()
        try:
            with os.scandir(root / base) as entries:
                found = list(entries)
        except OSError:
            left_out.append(NameProblem(problem=Problem.UNREADABLE, names=(base,)))
            continue
        for entry in found:
            name = f"{base}/{entry.name}" if base else entry.name
            if entry.is_dir(follow_symlinks=False) and name != TEMPORARY:
                folders.append(name)
            elif problem := _problem(entry, name, prefix=prefix, private=private):
                left_out.append(NameProblem(problem=problem, names=(name,)))
            else:
                files.append(LocalFile(name, Signature.of(entry.stat(follow_symlinks=False))))
    refused = refusals(file.name for file in files)
    left_out += [NameProblem(problem=Problem.REPOSITORY, names=(name,)) for name in refused]
    files = sorted((file for file in files if file.name not in refused), key=lambda file: file.name)
    left_out.sort(key=lambda each: each.names)
    return FolderScan(files=files, left_out=left_out)


def _problem(entry: os.DirEntry[str], name: str, *, prefix: str, private: bool) -> Problem | None:
    """Why this is not sent; None: it is."""
    if name == TEMPORARY or entry.name.endswith(PARTIAL_SUFFIX):
        return Problem.TEMPORARY
    if entry.is_symlink():
        return Problem.LINK
    try:
        if not entry.is_file(follow_symlinks=False):
            return Problem.SPECIAL
        if not is_safe(f"{prefix}/{name}" if prefix else name):
            return Problem.UNSAFE
        if not private and private_part(name, Path(entry.path)) is not None:
            return Problem.PRIVATE
        # That a file is of another user's shows before anything is sent.
        if not os.access(entry.path, os.R_OK):
            return Problem.UNREADABLE
    except OSError:
        return Problem.UNREADABLE
    return None


def links_out(root: Path, links: Sequence[NameProblem]) -> Iterator[NameProblem]:
    """The links among these that lead out of the folder, or nowhere."""
    real = Path(os.path.realpath(root))
    for each in links:
        target = Path(os.path.realpath(root / each.names[0]))
        if real not in target.parents or not target.exists():
            yield NameProblem(problem=Problem.LEADS_OUT, names=each.names)


def has_changed(root: Path, file: LocalFile) -> bool:
    """Whether a file is not the one that was found, or is gone."""
    try:
        status = (root / file.name).lstat()
    except OSError:
        return True
    return not stat.S_ISREG(status.st_mode) or Signature.of(status) != file.signature
