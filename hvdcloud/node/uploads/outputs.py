"""What ranks write in the project's folder, beside the script: it is kept as the checkpoint directory is.

A file is an output of a run if it is not as it was when this node was made ready for that run. Models are always kept;
of other files as many GB as `checkpoints.workspace_gb` says, so that a data set that a script downloads does not hold
up the end of a run.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from hvdcloud.checkpoints.names import WORKSPACE, is_model
from hvdcloud.node import paths
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.uploads.scan import File, walk

_CACHES = frozenset((".git", ".hg", ".svn", "__pycache__", ".ipynb_checkpoints", ".cache", ".eggs", "node_modules"))
_CACHE_SUFFIXES = ("_cache", ".pyc", ".whl", ".egg-info", ".dist-info", paths.STAGING)


class Outputs(NamedTuple):
    """What a run has written in the project's folder on this node."""

    run: str
    most: int
    """Bytes of files that are no models."""

    def files(self, skipped: list[str], left_out: set[str]) -> list[File]:
        """Those that are kept.

        Args:
            skipped: is given sentences about links that lead elsewhere and names that no file may have.
            left_out: is given what is too much: files of the project's folder, and folders, which end in "/".
        """
        kept: list[File] = []
        others: dict[str, list[File]] = defaultdict(list)
        for file in self._all(skipped):
            *folders, _ = file.name.split("/")
            # A file beside the script is not left out for what others are there.
            group = "/".join(folders) if len(folders) > 1 and file.signature.size <= self.most else file.name
            (kept if is_model(file.name) else others[group]).append(file)
        free = self.most
        for files in sorted(others.values(), key=lambda files: (_size(files), files[0].name)):
            if (size := _size(files)) <= free:
                free -= size
                kept += files
            else:
                left_out.update(_top(file.name) for file in files)
        return kept

    def _all(self, skipped: list[str]) -> list[File]:
        found = {file.name: file for file in _walk(paths.outputs_dir(self.run), skipped)}
        record = _record()
        if record.get("run") == self.run:
            before = record["files"]
            changed = (file for file in _walk(paths.workspace(), skipped) if before.get(file.name) != _state(file))
            found |= {file.name: file for file in changed}
        return list(found.values())

    def begin(self) -> None:
        """From now on, what changes in the project's folder is an output of this run."""
        if _record().get("run") != self.run:
            files = {file.name: _state(file) for file in _walk(paths.workspace(), [])}
            write_json(paths.workspace_file(), {**self._asdict(), "files": files})


def set_aside(*, before: str, project: Collection[str]) -> None:
    """Move what another run has written out of the project's folder before this one, which gets what it continues from.

    What is too large to be kept stays, and so does what somebody put there after that run had ended.

    Args:
        project: paths of what the laptop has sent.
    """
    record = _record()
    if (run := record.get("run", before)) == before:
        return
    ended = float("inf")
    with contextlib.suppress(FileNotFoundError):
        ended = paths.uploads_file(run).stat().st_ctime_ns
    written = {file.path for file in Outputs(run, record["most"]).files([], set())}
    root, aside = Path(os.path.realpath(paths.workspace())), paths.outputs_dir(run)
    for folder, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(folder, name)
            relative = path.relative_to(root)
            is_link = path.is_symlink() and str(relative) not in project
            if (path in written or is_link) and path.lstat().st_ctime_ns <= ended:
                (aside / relative).parent.mkdir(parents=True, exist_ok=True)
                path.rename(aside / relative)
                _remove_empty(path.parent, root)


def _remove_empty(folder: Path, root: Path) -> None:
    """Delete a folder below `root` and those above it that have nothing left in them: one may be in a file's way."""
    with contextlib.suppress(OSError):
        while folder != root:
            folder.rmdir()
            folder = folder.parent


def _record() -> dict[str, Any]:
    return read_json(paths.workspace_file()) or {}


def _walk(folder: Path, skipped: list[str]) -> list[File]:
    return walk(folder, skipped, named=lambda name: f"{WORKSPACE}/{name}", leave_out=_is_cache)


def _is_cache(name: str) -> bool:
    return name in _CACHES or name.endswith(_CACHE_SUFFIXES)


def _top(name: str) -> str:
    """The folder or file of the project's folder that an object's file is in."""
    _, first, *rest = name.split("/")
    return f"{first}/" if rest else first


def _state(file: File) -> list[int]:
    """What tells whether a file has changed, as JSON has it."""
    return [file.signature.size, file.signature.mtime_ns, file.signature.ctime_ns]


def _size(files: Collection[File]) -> int:
    return sum(file.signature.size for file in files)
