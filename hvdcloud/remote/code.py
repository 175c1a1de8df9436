"""The project's folder, sent to a node: only what changed.

The node program's `prepare` verb gets the list of files with their hashes, answers which it lacks, and receives those
as a tar stream. What `.gitignore` and `.dockerignore` exclude stays on the laptop.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.node.run.sync import check_wanted, stays_inside
from hvdcloud.private_files import left_out
from hvdcloud.project_files import code_files
from hvdcloud.remote.ssh import CHUNK, NODE_PROGRAM, SEND_SECONDS, Session
from hvdcloud.units import counted, size

PREPARE_SECONDS = 600.0
"""How long a node may take before the first file is sent to it, and after the last one."""
_ANSWER_BYTES = 1 << 16
_INDEX_BYTES = 16
"""What the first line of a node's answer may have, and for each file; a longer one is no list of files."""
_LARGE = 100_000_000
"""Bytes above which the user is warned."""
_WORTH_NAMING = 0.2
"""The share of all bytes from which on a file is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeFile:
    """One file or symbolic link of the project."""

    path: str  # Relative to the project's folder, with forward slashes.
    size: int = 0
    mode: int = 0o644
    sha256: str = ""
    link: str | None = None

    def entry(self) -> dict[str, Any]:
        """The entry in the form that `prepare` expects."""
        if self.link is not None:
            return {"path": self.path, "link": self.link}
        return {"path": self.path, "size": self.size, "mode": self.mode, "sha256": self.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What `prepare` did on one node."""

    files: int
    bytes: int
    restored: int


class Sending:
    """How much of the project's files the nodes have got. Any thread may call.

    Args:
        on_change: called with it whenever that changes.
        warn: called once, with a sentence, if it is so much that some of it may be a mistake.
    """

    def __init__(self, on_change: Callable[[Sending], object], warn: Callable[[str], object]) -> None:
        self._on_change, self._warn = on_change, warn
        self._lock = threading.Lock()
        self._most = 0
        self._largest = CodeFile(path="")
        self._nodes = 0
        self._sent = self._total = 0

    @property
    def text(self) -> str:
        """What is sent, in words."""
        share = self._largest.size / self._most if self._most else 0.0
        named = f" ({self._largest.path} is {share:.0%})".replace("%", " %") if share >= _WORTH_NAMING else ""
        return f"syncing {size(self._most)}{named}"

    @property
    def sent(self) -> float:
        """Bytes, of the nodes on average."""
        return self._sent / max(1, self._nodes)

    @property
    def total(self) -> float:
        """Bytes that a node lacked, on average."""
        return self._total / max(1, self._nodes)

    def wanted(self, files: Sequence[CodeFile]) -> None:
        """A node lacks these files."""
        lacking = sum(file.size for file in files)
        if not lacking:
            return
        with self._lock:
            warned = self._most > _LARGE
            self._nodes += 1
            self._total += lacking
            if lacking > self._most:
                self._most, self._largest = lacking, max(files, key=lambda file: file.size)
        if lacking > _LARGE and not warned:
            self._warn(
                f"every node is sent {size(lacking)}; the largest file is {self._largest.path} "
                f"({size(self._largest.size)}): a line in .gitignore or .dockerignore leaves it out"
            )
        self._on_change(self)

    def add(self, count: int) -> None:
        """This many more bytes are on their way."""
        with self._lock:
            self._sent += count
        self._on_change(self)


def list_code(folder: Path, *, warn: Callable[[str], object] | None = None, contents: bool = True) -> list[CodeFile]:
    """Every file of the project that is not ignored and holds no credentials, sorted by path.

    Args:
        warn: called with a sentence if files with credentials are left out.
        contents: read files, for their hashes.

    Raises:
        UsageError: a file or a folder cannot be read, a link leads out of the project, or the folder is the home folder
            or above it.
    """
    private: set[str] = set()
    found = []
    path = folder
    astray = []
    try:
        for path in code_files(folder, withheld=private.add):
            relative = path.relative_to(folder).as_posix()
            if path.is_symlink():
                link = _link(folder, path)
                astray += [] if link else [path]
                found.append(CodeFile(path=relative, link=link or ""))
                continue
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                mode = status.st_mode & 0o777
                found.append(
                    CodeFile(path=relative, size=status.st_size, mode=mode, sha256=_sha256(path) if contents else "")
                )
    except OSError as error:
        raise UsageError(
            f"{error.filename or path} cannot be read: {error.strerror}",
            hint="fix its permissions or add it to .gitignore",
        ) from error
    if astray:
        raise _astray(folder, astray)
    if private and warn is not None:
        warn(left_out(private))
    return sorted(found, key=lambda file: file.path)


def _link(folder: Path, path: Path) -> str | None:
    """What a link of the project is on a node, however it is written here; None: it leads out of the project."""
    text, root, real = os.readlink(path), os.path.realpath(folder), os.path.realpath(path)
    if real != root and not real.startswith(f"{root}/"):
        return None
    if stays_inside(path.relative_to(folder).as_posix(), text):
        return text
    return os.path.relpath(real, os.path.realpath(path.parent))


def _astray(folder: Path, links: Sequence[Path]) -> UsageError:
    names = [path.relative_to(folder).as_posix() for path in links]
    more = f", as do {counted(len(links) - 1, 'other link')}" if len(links) > 1 else ""
    data = "data of hvdcloud.yaml brings a data set to the nodes; " if links[0].is_dir() else ""
    return UsageError(
        f"{names[0]} is a link that leads out of the project, to {os.readlink(links[0])}{more}; nodes do not have that",
        hint=f"{data}copy it into the project, or leave it out with the line {names[0]} in .dockerignore",
        details="\n".join(f"{name} -> {os.readlink(path)}" for name, path in zip(names[1:], links[1:], strict=True)),
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def prepare(
    session: Session, *, header: Mapping[str, Any], folder: Path, code: list[CodeFile], sending: Sending
) -> Sent:
    """Make a node ready for a run: its code, its environment, the checkpoints to continue from.

    Args:
        header: what `prepare` needs besides the code (see hvdcloud/node/run/prepare.py).

    Raises:
        NodeError: the node failed or was lost, or asks for files that the project does not have.
        UsageError: a file changed or vanished while it was sent.
    """
    deadline = time.monotonic() + PREPARE_SECONDS
    session.open(within=PREPARE_SECONDS)
    with session.channel(f"{NODE_PROGRAM} prepare") as channel:
        channel.settimeout(SEND_SECONDS)
        channel.sendall(json.dumps({**header, "files": [file.entry() for file in code]}).encode() + b"\n")
        received = bytearray()
        while b"\n" not in received and len(received) <= _ANSWER_BYTES + _INDEX_BYTES * len(code):
            session.wait_readable(channel, deadline=deadline, what="prepare")
            if channel.recv_ready():
                received += channel.recv(CHUNK)
            elif channel.exit_status_ready() or channel.closed:
                break
        first, _, rest = bytes(received).partition(b"\n")
        wanted: list[CodeFile] = []
        if first and b'"want"' in first:
            indices = check_wanted(
                parse_object(first.decode(errors="replace")), node=session.node.name, files=len(code)
            )
            wanted = [code[index] for index in indices]
            sending.wanted(wanted)

            def send(block: bytes) -> None:
                channel.sendall(block)
                sending.add(len(block))

            _send_tar(send, folder, wanted)
            deadline = time.monotonic() + PREPARE_SECONDS
        else:
            rest = first
        channel.shutdown_write()
        answer = session.read_to_end(channel, deadline=deadline, what="prepare", stdout=rest)
        result = session.parse("prepare", answer)
    sent = [file for file in wanted if file.link is None]
    return Sent(files=len(sent), bytes=sum(file.size for file in sent), restored=int(result.get("restored", 0)))


class _Pipe(io.RawIOBase):
    """A file object that hands what is written to a function."""

    def __init__(self, send: Any) -> None:
        self._send = send

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        block = bytes(data)
        self._send(block)
        return len(block)


def _send_tar(send: Any, folder: Path, files: list[CodeFile]) -> None:
    pipe = io.BufferedWriter(_Pipe(send), buffer_size=CHUNK)
    with tarfile.open(fileobj=pipe, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            if file.link is not None:
                continue
            info = tarfile.TarInfo(file.path)
            info.size, info.mode = file.size, file.mode
            try:
                with (folder / file.path).open("rb") as content:
                    archive.addfile(info, content)
            except OSError as error:
                raise UsageError(
                    f"{folder / file.path} changed while it was sent: {error}", hint="hvdcloud run again"
                ) from error
    pipe.flush()
