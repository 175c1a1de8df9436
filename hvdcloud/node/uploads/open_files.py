"""Which files some process is in the middle of writing, by what /proc says about open files and mappings.

A process that may not be read (another user's, for a caller that is not root) is skipped: the agent is root.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FileId = tuple[int, int]
"""Device and inode."""

_PROC = Path("/proc")
_OWNER_MAY_WRITE = 0o200


def being_written(files: Iterable[tuple[FileId, str]]) -> set[FileId]:
    """Those of `files` that any process has open for writing or mapped shared and writable. A file is known by device
    and inode, and by its real path (without symbolic links): a mapping on an overlay file system has another device."""
    by_path = {path: file_id for file_id, path in files}
    wanted = set(by_path.values())
    found: set[FileId] = set()
    if not wanted:
        return found
    for pid in _numbered(_PROC):
        if found == wanted:
            break
        process = _PROC / pid
        try:
            found |= _open_for_writing(process / "fd") & wanted
            found |= _mapped(process / "maps", wanted=wanted, by_path=by_path)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or is not ours
    return found


def _numbered(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.name.isdigit()]


def _open_for_writing(folder: Path) -> set[FileId]:
    found: set[FileId] = set()
    for number in _numbered(folder):
        link = f"{folder}/{number}"
        try:
            # The link's own permissions tell the mode of the open file (proc_pid_fd(5)): no need to read fdinfo.
            if os.lstat(link).st_mode & _OWNER_MAY_WRITE:
                status = os.stat(link)  # noqa: PTH116 - thousands of these: no Path for each
                found.add((status.st_dev, status.st_ino))
        except FileNotFoundError:
            continue  # closed meanwhile
    return found


def _mapped(path: Path, *, wanted: set[FileId], by_path: dict[str, FileId]) -> set[FileId]:
    found: set[FileId] = set()
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # address perms offset device inode path
            _, _, rest = line.partition(" ")
            if rest[1:2] != "w" or rest[3:4] != "s":
                continue
            fields = rest.split(maxsplit=4)
            if len(fields) < 5:
                continue
            major, _, minor = fields[2].partition(":")
            file_id = (os.makedev(int(major, 16), int(minor, 16)), int(fields[3]))
            name = fields[4].rstrip("\n").replace("\\012", "\n")
            if file_id in wanted:
                found.add(file_id)
            elif name in by_path:
                found.add(by_path[name])
    return found
