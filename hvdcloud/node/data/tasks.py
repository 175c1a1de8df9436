"""What the fetcher's processes are told and what they answer, as JSON lists, and how an object becomes a file."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import NamedTuple

from hvdcloud.errors import ExitCode, HvdcloudError
from hvdcloud.node.data.tree import FILE_MODE

MESSAGE = 128 << 10
"""Bytes of a message at most: a batch of the longest names."""


class Task(NamedTuple):
    """One object, or bytes of one; `data_set` is its number in the request."""

    data_set: int
    name: str
    size: int
    crc32c: str
    generation: int
    start: int = 0
    whole: bool = True


class Failure(NamedTuple):
    """Why a task failed; `errno` where it is this node's disk."""

    message: str
    hint: str
    exit_code: int
    errno: int | None = None


class Done(NamedTuple):
    """A task that is done; `crc` is the CRC32C of its bytes."""

    task: Task
    crc: int = 0
    failure: Failure | None = None


class Results(NamedTuple):
    """What processes have done.

    Attributes:
        files, size: whole objects that are verified files now, and bytes of them.
        others: parts of objects, and what failed.
    """

    others: list[Done]
    files: int = 0
    size: int = 0

    @property
    def tasks(self) -> int:
        return self.files + len(self.others)

    def to_message(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def from_message(cls, message: bytes) -> Results:
        others, files, size = json.loads(message)
        done = [Done(Task(*task), crc, None if why is None else Failure(*why)) for task, crc, why in others]
        return cls(done, files, size)


def tasks_message(tasks: list[Task]) -> bytes:
    """For `tasks_of`."""
    return json.dumps(tasks).encode()


def tasks_of(message: bytes) -> list[Task]:
    """Tasks that were sent together."""
    return [Task(*each) for each in json.loads(message)]


def failure_of_skipped() -> Failure:
    """Of a task that is not begun, since another one of its data set has failed."""
    return Failure(
        message="another file of the data set failed", hint="hvdcloud run again", exit_code=int(ExitCode.NODE)
    )


def failure_of(error: HvdcloudError) -> Failure:
    """Of a task that ended with this error."""
    return Failure(message=error.message, hint=error.hint, exit_code=int(error.code))


def failure_of_disk(error: OSError, tree: str | Path) -> Failure:
    """Of a task whose bytes could not be written."""
    why = f"writing {error.filename or tree} failed: {error.strerror or error}"
    return Failure(message=why, hint="make the disk usable", exit_code=int(ExitCode.NODE), errno=error.errno)


def new_file(path: str) -> int:
    """Descriptor of an empty file in the place of whatever is at `path`. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    Path(path).unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)


def write_at(descriptor: int, piece: bytes, offset: int) -> None:
    """Write all of it. Raises OSError."""
    written = os.pwrite(descriptor, piece, offset)
    while written < len(piece):
        written += os.pwrite(descriptor, piece[written:], offset + written)
