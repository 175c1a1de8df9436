"""The project's folder, sent to a node: only what changed.

The node program's `code` verb gets the list of files with their hashes, deletes what is no longer listed, and answers
which it lacks. Those come as one tar archive, which `prepare` reads. What `.gitignore` and `.dockerignore`
exclude stays on the laptop.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.node.run.sync import Entry, check_wanted, sha256_of, stays_inside
from hvdcloud.private_files import left_out
from hvdcloud.project_files import code_files
from hvdcloud.remote.ssh import Session
from hvdcloud.units import counted

PREPARE_SECONDS = 600.0
"""How long a node may take to compare its files, and to make itself ready once the others are there."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What `prepare` did on one node."""

    files: int
    bytes: int
    restored: int


def list_code(folder: Path, *, warn: Callable[[str], object] | None = None, contents: bool = True) -> list[Entry]:
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
                found.append(Entry(relative, link=link or ""))
                continue
            status = path.stat()
            if stat.S_ISREG(status.st_mode):
                mode = status.st_mode & 0o777
                found.append(Entry(relative, status.st_size, mode, sha256_of(path) if contents else ""))
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


def prepare(session: Session, *, header: Mapping[str, Any], folder: Path, code: list[Entry]) -> Sent:
    """Make a node ready for a run: its code, its environment, the checkpoints to continue from.

    Args:
        header: what `prepare` needs besides the code (see hvdcloud/node/run/prepare.py).

    Raises:
        NodeError: the node failed or was lost, or asks for files that the project does not have.
        UsageError: a file changed or vanished while it was sent.
    """
    files = [file._asdict() for file in code]
    answer = session.call("code", payload={"run": header["run"], "files": files}, timeout=PREPARE_SECONDS)
    wanted = [code[index] for index in check_wanted(answer, node=session.node.name, files=len(code))]
    size = sum(file.size for file in wanted)
    result = session.call(
        "prepare",
        payload={**header, "files": files},
        content=_archive(folder, wanted),
        content_size=size,
        timeout=PREPARE_SECONDS,
    )
    return Sent(files=len(wanted), bytes=size, restored=int(result.get("restored", 0)))


def _archive(folder: Path, files: Sequence[Entry]) -> Iterator[bytes]:
    """These files as a tar archive, piece by piece."""
    for file in files:
        info = tarfile.TarInfo(file.path)
        info.size, info.mode = file.size, file.mode
        yield info.tobuf(tarfile.PAX_FORMAT)
        path = folder / file.path
        try:
            yield from exactly(path, size=file.size)
        except (OSError, EOFError) as error:
            raise UsageError(f"{path} changed while it was sent: {error}", hint="hvdcloud run again") from error
        yield tarfile.NUL * (-file.size % tarfile.BLOCKSIZE)
    yield tarfile.NUL * (2 * tarfile.BLOCKSIZE)


def exactly(path: Path, *, size: int) -> Iterator[bytes]:
    """The first bytes of a file. Raises OSError; EOFError: there are fewer."""
    with path.open("rb") as file:
        while size:
            if not (data := file.read(min(_PIECE, size))):
                raise EOFError("it became shorter")
            size -= len(data)
            yield data
