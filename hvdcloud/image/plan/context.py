"""What one build is made of, and the names that follow from it. Nothing here talks to the engine or changes a file.

An image's tag holds a hash of everything that decides its content, so an existing image need not be built. What
only decides where things are downloaded from (CA bundle, package index, proxy) is not part of the hash.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from packaging.utils import canonicalize_name

from hvdcloud.errors import UsageError
from hvdcloud.image.plan.sources import Sources, Wheel, local_wheels
from hvdcloud.node import program

if TYPE_CHECKING:
    from gzip import GzipFile

STACKS_LOCK = "locks/stacks.txt"
# The same context has to be the same bytes, and Python's .pyc files remember their source's time: always this one.
MTIME = 946_684_800  # 2000-01-01
_CHUNK = 1 << 20
_FIX_DOWNLOADS = "check that PyPI can be reached, image.ca_bundle and image.find_links, then `hvdcloud build` again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file, or with `content=None` and no source a folder, of a build context.

    Attributes:
        path: in the context.
        source: the file on this disk that has the content; read when the context is sent.
        content: the content itself.
        link: the file is a symbolic link to this.
        identity: stands for the content in the hash, for files too large to be read each time; "" reads it.
    """

    path: str
    source: Path | None = None
    content: bytes | None = None
    link: str | None = None
    executable: bool = False
    identity: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is sent to the engine for one build.

    Attributes:
        hashed: the files that decide what is in the image.
        unhashed: those that only help to build it.
        salt: what decides it without being a file: versions, the machine, the image below.
    """

    hashed: tuple[Entry, ...]
    unhashed: tuple[Entry, ...] = ()
    salt: tuple[str, ...] = ()

    def digest(self) -> str:
        """Twelve hexadecimal digits that change if and only if `hashed` or `salt` does."""
        total = hashlib.sha256()
        for value in self.salt:
            total.update(f"salt {len(value)} {value}\n".encode())
        for entry in sorted(self.hashed, key=lambda entry: entry.path):
            identity = entry.identity or _hash(entry)
            total.update(f"{entry.path} {entry.executable:d} {identity}\n".encode())
        return total.hexdigest()[:12]

    def write(self, file: IO[bytes] | GzipFile) -> None:
        """Write the context as a tar file, the same bytes on every machine; files are read as they are sent."""
        entries = sorted((*self.hashed, *self.unhashed), key=lambda entry: entry.path)
        folders = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents} - {"."}
        with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for entry in (*(Entry(path=folder) for folder in sorted(folders)), *entries):
                info = tarfile.TarInfo(entry.path)
                info.mtime, info.linkname = MTIME, entry.link or ""
                if entry.link is not None or (entry.source is None and entry.content is None):
                    info.type, info.mode = tarfile.DIRTYPE if entry.link is None else tarfile.SYMTYPE, 0o755
                    archive.addfile(info)
                    continue
                info.mode = 0o755 if entry.executable else 0o644
                with entry.source.open("rb") if entry.source else io.BytesIO(entry.content or b"") as content:
                    info.size = content.seek(0, os.SEEK_END)
                    content.seek(0)
                    try:
                        archive.addfile(info, content)
                    except OSError as error:
                        if error.errno is not None:
                            raise
                        message = f"{entry.source} became shorter while it was read"
                        raise UsageError(message, hint="hvdcloud build tries again") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One image and how it is built.

    Attributes:
        reference: its name, with a tag that stands for its content.
        what: it in words, for messages.
        context: what is sent to the builder.
        dockerfile: path in the context.
        target: the stage that is the image; "": the last one.
        arguments: those that decide the content, and the framework's index.
        labels: of the image.
        pip_hint: what to do if it is pip that fails.
        needs: references of the images of earlier steps that it is built from.
    """

    reference: str
    what: str
    context: Context
    dockerfile: str
    target: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    pip_hint: str = _FIX_DOWNLOADS
    needs: tuple[str, ...] = ()


def file_entry(file: Path, path: str) -> Entry | None:
    """A file or link of this disk; None for sockets and other special files, which Docker leaves out too."""
    if file.is_symlink():
        return Entry(path=path, link=os.readlink(file))
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        return None
    with file.open("rb"):
        return Entry(path=path, source=file, executable=bool(mode & stat.S_IXUSR))


def _hash(entry: Entry) -> str:
    if entry.link is not None:
        return f"link {entry.link}"
    if entry.source is None:
        return hashlib.sha256(entry.content or b"").hexdigest()
    total = hashlib.sha256()
    with entry.source.open("rb") as file:
        while chunk := file.read(_CHUNK):
            total.update(chunk)
    return total.hexdigest()


# --- what several images hold ----------------------------------------------------------------------------------------


def dockerfiles() -> Path:
    """The folder with the Dockerfiles: inside an installed hvdcloud, or in the repository it runs from."""
    for folder in (program.PACKAGE / "dockerfiles", program.PACKAGE.parent / "dockerfiles"):
        if (folder / "builder.Dockerfile").is_file():
            return folder
    message = f"this installation of hvdcloud has no dockerfiles/ beside {program.PACKAGE}"
    raise UsageError(message, hint="in a clone of hvdcloud: pipx install --force .")


def stacks_wheels(sources: Sources, *, python: str | None) -> list[Wheel]:
    """Local wheels of the program that takes stacks (`STACKS_LOCK`); `python`: as in `local_wheels`."""
    wanted = {name for name, _ in locked(dockerfiles() / STACKS_LOCK)}
    return [wheel for wheel in local_wheels(sources, python=python) if wheel.project in wanted]


def dockerfile_entries(*names: str) -> tuple[Entry, ...]:
    """Files below `dockerfiles()`."""
    contents = ((name, (dockerfiles() / name).read_bytes()) for name in names)
    # Not the file's own mode: a wheel of hvdcloud need not have kept it.
    return tuple(
        Entry(path=f"dockerfiles/{name}", content=content, executable=content.startswith(b"#!"))
        for name, content in contents
    )


def node_program() -> Iterator[Entry]:
    """The part of hvdcloud that runs on nodes."""
    for file in program.files():
        yield Entry(path=f"hvdcloud/{file.relative_to(program.PACKAGE).as_posix()}", source=file)


def ca_entry(sources: Sources) -> Entry:
    """The CA certificates that downloads are checked with; empty where none are needed."""
    return Entry(path="ca-bundle.crt", source=sources.ca_bundle, content=None if sources.ca_bundle else b"")


def locked(lock: Path) -> Iterator[tuple[str, str]]:
    """Projects of a lock, each with its version: one, unless another Python needs another."""
    for line in lock.read_text(encoding="utf-8").splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#"):
            yield canonicalize_name(name), version.split()[0]


def wheel_entries(wheels: Iterable[Wheel]) -> Iterator[Entry]:
    """The folder of local wheels, then the wheels."""
    yield Entry(path="wheels")
    for wheel in wheels:
        # Reading gigabytes for a hash would take longer than everything else; a file that is replaced has another time.
        stat = wheel.path.stat()
        identity = f"{stat.st_size} {stat.st_mtime_ns}"
        yield Entry(path=f"wheels/{wheel.path.name}", source=wheel.path, identity=identity)
