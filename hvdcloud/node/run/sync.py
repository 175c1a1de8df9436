"""The project's code in the workspace: what the laptop has, no more and no less.

A sync never deletes what a sync did not put there, and never writes outside the workspace, whatever the list says.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.paths import STAGING

_BLOCK = 1 << 20


class Entry(NamedTuple):
    """One file or symbolic link, as the laptop lists it."""

    path: str  # Relative to the project's folder, with forward slashes.
    size: int = 0
    mode: int = 0
    sha256: str = ""
    link: str | None = None

    @classmethod
    def parse(cls, value: dict[str, Any]) -> Entry:
        """Check one listed entry. Raises UsageError: not well-formed, or it would lead out of the workspace."""
        try:
            path = str(value["path"])
            if (link := value.get("link")) is not None:
                entry = cls(path, link=str(link))
            else:
                entry = cls(path, int(value["size"]), int(value["mode"]) & 0o777, str(value["sha256"]))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            raise UsageError(f"the list of files is malformed: {error!r}", hint="hvdcloud run again") from error
        parts = path.split("/")
        if "\0" in path or any(part in ("", ".", "..") for part in parts) or parts[0] == STAGING:
            raise UsageError(f"{path!r} is not a path inside the project", hint="rename it or add it to .gitignore")
        if entry.link is not None and not stays_inside(path, entry.link):
            hint = "replace it by what it points to, or add it to .gitignore"
            raise UsageError(f"the symbolic link {path!r} leads out of the project, to {entry.link!r}", hint=hint)
        return entry


def stays_inside(path: str, target: str) -> bool:
    """Whether a link at a path of the project leads to somewhere in the project, as it is written."""
    if not target or "\0" in target or target.startswith("/"):
        return False
    depth = path.count("/")
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return False
    return True


def check_wanted(answer: dict[str, Any] | None, *, node: str, files: int) -> list[int]:
    """The numbers of the files that a node lacks, as it answers `prepare`.

    Raises NodeError: not a list that names each of `files` files once at most.
    """
    wanted: Any = (answer or {}).get("want")
    known = isinstance(wanted, list) and all(type(each) is int and 0 <= each < files for each in wanted)
    if known and len(set(wanted)) == len(wanted):
        return list(wanted)
    why = f"node {node} asks for files that the project does not have"
    raise NodeError(why, hint="hvdcloud build: the image and hvdcloud must be the same version")


class Sync:
    """One sync of the project into the workspace.

    Args:
        record: JSON file that says what earlier syncs put there.
        entries: all files of the project.

    Raises:
        UsageError: a path is listed twice, or below a listed file or link.
    """

    def __init__(self, *, workspace: Path, record: Path, entries: Sequence[Entry]) -> None:
        self._workspace = workspace
        self._record_file = record
        self.entries = entries
        self._staging = workspace / STAGING
        self._known: dict[str, dict[str, Any]] = (read_json(record) or {}).get("files", {})
        self._done: dict[str, dict[str, Any]] = {}
        listed = {entry.path for entry in entries}
        if len(listed) != len(entries):
            raise UsageError("the list of files names one path twice", hint="hvdcloud run again")
        for path in listed:
            if above := listed.intersection(_parents(path)):
                raise UsageError(f"{path!r} lies below {min(above)!r}, which is a file", hint="hvdcloud run again")

    def plan(self) -> list[int]:
        """Delete what is no longer listed, and say which entries' contents are needed."""
        if self._staging.is_symlink():
            # A rank's: what is put there would go where it leads.
            self._staging.unlink()
        shutil.rmtree(self._staging, ignore_errors=True)
        self._workspace.mkdir(parents=True, exist_ok=True)
        self._delete_unlisted()
        wanted = []
        for index, entry in enumerate(self.entries):
            if astray := self._led_astray(entry.path):
                hint = f"hvdcloud ssh 0 rm {self._workspace / astray}"
                raise UsageError(f"{entry.path} lies below {astray}, which is not a folder on the node", hint=hint)
            if entry.link is not None:
                self._put_link(entry)
            elif not self._is_there(entry):
                wanted.append(index)
        return wanted

    def put(self, entry: Entry, content: IO[bytes]) -> None:
        """Write one file under a temporary name, check it, and move it into place. Raises NodeError: its bytes are not
        those that the list announced."""
        self._staging.mkdir(exist_ok=True)
        temporary = self._staging / "file"
        with temporary.open("wb") as file:
            shutil.copyfileobj(content, file, _BLOCK)
            os.fchmod(file.fileno(), entry.mode)
        if sha256_of(temporary) != entry.sha256:
            temporary.unlink()
            raise NodeError(f"{entry.path} changed while it was sent", hint="hvdcloud run again")
        self._move(temporary, entry.path)
        self._remember(entry, (self._workspace / entry.path).lstat())

    def commit(self) -> None:
        """Write the record; everything listed is in place. Raises NodeError: something that was wanted has not come."""
        missing = [entry.path for entry in self.entries if entry.path not in self._done]
        if missing:
            raise NodeError(f"{missing[0]} was not sent ({len(missing)} files missing)", hint="hvdcloud run again")
        self._known = {}
        self.abandon()

    def abandon(self) -> None:
        """End an unfinished sync: record what it has put there, so that the next one can replace or delete it."""
        shutil.rmtree(self._staging, ignore_errors=True)
        write_json(self._record_file, {"files": self._known | self._done})

    def _delete_unlisted(self) -> None:
        kinds = {entry.path: entry.link is not None for entry in self.entries}
        for path, known in list(self._known.items()):
            if kinds.get(path) == ("link" in known):
                continue
            target = self._workspace / path
            if not self._led_astray(path) and self._is_as_recorded(target, known):
                target.unlink()
                with contextlib.suppress(OSError):
                    for parent in reversed(_parents(path)):
                        (self._workspace / parent).rmdir()
            del self._known[path]

    def _is_there(self, entry: Entry) -> bool:
        target = self._workspace / entry.path
        if target.is_symlink() or not target.exists():
            return False
        if target.is_dir():
            hint = f"hvdcloud ssh 0 rm -r {target}"
            raise UsageError(f"{entry.path} is a file in the project and a folder on the node", hint=hint)
        if not target.is_file() or (status := target.lstat()).st_size != entry.size:
            return False
        known = self._known.get(entry.path)
        sha256 = known.get("sha256") if known and is_unchanged(status, known) else sha256_of(target)
        if sha256 != entry.sha256:
            return False
        if stat.S_IMODE(status.st_mode) != entry.mode:
            target.chmod(entry.mode)
        self._remember(entry, status)
        return True

    def _remember(self, entry: Entry, status: os.stat_result) -> None:
        size, mtime = status.st_size, status.st_mtime_ns
        self._done[entry.path] = {"size": size, "mtime_ns": mtime, "mode": entry.mode, "sha256": entry.sha256}

    def _put_link(self, entry: Entry) -> None:
        assert entry.link is not None
        target = self._workspace / entry.path
        if not (target.is_symlink() and str(target.readlink()) == entry.link):
            self._staging.mkdir(exist_ok=True)
            temporary = self._staging / "link"
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(entry.link)
            self._move(temporary, entry.path)
        self._done[entry.path] = {"link": entry.link}

    def _move(self, temporary: Path, path: str) -> None:
        """Move a finished file or link to its place."""
        target = self._workspace / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(target)
        except OSError as error:
            why = f"{path} cannot be put into the workspace: {error.strerror}"
            raise UsageError(why, hint=f"hvdcloud ssh 0 rm -r {target}") from error

    def _led_astray(self, path: str) -> str | None:
        """The first parent that exists and is not a real folder: through a link we would write elsewhere."""
        for parent in _parents(path):
            try:
                status = (self._workspace / parent).lstat()
            except FileNotFoundError:
                return None
            if not stat.S_ISDIR(status.st_mode):
                return parent
        return None

    def _is_as_recorded(self, target: Path, known: dict[str, Any]) -> bool:
        """Whether what lies there is still what a sync put there."""
        if target.is_symlink():
            return "link" in known and str(target.readlink()) == known["link"]
        return "link" not in known and target.is_file() and is_unchanged(target.lstat(), known)


def is_unchanged(status: os.stat_result, known: dict[str, Any]) -> bool:
    """Whether a file is as a sync recorded it."""
    return (status.st_size, status.st_mtime_ns) == (known.get("size"), known.get("mtime_ns"))


def _parents(path: str) -> list[str]:
    """`a/b/c` → `a`, `a/b`."""
    return [str(parent) for parent in reversed(PurePosixPath(path).parents[:-1])]


def sha256_of(path: Path) -> str:
    """Hexadecimal, of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
