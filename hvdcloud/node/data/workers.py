"""The processes that fetch: each with threads, each thread with one connection, all fed from one socket.

One process's interpreter lock would be the limit for small objects. Tasks and results are messages of a SOCK_SEQPACKET
socket: each thread that is free takes one whole message, so the kernel divides the work, and a full socket holds back
who feeds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hvdcloud.errors import ExitCode, HvdcloudError, NodeError
from hvdcloud.node import paths
from hvdcloud.node.data.sets import DataRequest
from hvdcloud.node.data.tree import FILE_MODE, mark, tree_dir
from hvdcloud.storage.access_token import AccessToken
from hvdcloud.storage.base import CorruptObjectError
from hvdcloud.storage.checksum import crc32c_text
from hvdcloud.storage.gcs_reader import LocalWriteError
from hvdcloud.storage.reader import Reader, open_reader

THREADS = 16
LEAST_PROCESSES, MOST_PROCESSES = 4, 8
"""Small objects wait for the bucket's answers, not for a processor: 64 connections where there are two cores, too."""
MESSAGE = 128 << 10
"""Bytes of a message at most: a batch of the longest names."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One object, or bytes of one; `data_set` is its number in the request."""

    data_set: int
    name: str
    size: int
    crc32c: str
    generation: int
    start: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a task failed; `errno` where it is this node's disk."""

    message: str
    hint: str
    exit_code: int
    errno: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A task that is done; `crc` is the CRC32C of its bytes."""

    task: Task
    crc: int = 0
    failure: Failure | None = None


class Workers:
    """All of them; made before this process has threads."""

    def __init__(self, request: DataRequest, *, processes: int | None = None) -> None:
        self._tasks, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._results, back = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self._tasks, theirs, self._results, back):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE)
        self._results.settimeout(0.2)
        # One byte for each set, which all processes see.
        self._skipped = mmap.mmap(-1, max(1, len(request.sets)))
        self._pids: list[int] = []
        parent = os.getpid()
        for _ in range(processes or max(LEAST_PROCESSES, min(MOST_PROCESSES, len(os.sched_getaffinity(0))))):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    _die_with(parent)
                    self._tasks.close()
                    self._results.close()
                    _Worker(request, theirs, back, self._skipped).run()
                    code = 0
                finally:
                    os._exit(code)
            self._pids.append(pid)
        theirs.close()
        back.close()

    def send(self, tasks: list[Task]) -> None:
        """Hand on tasks; waits while the workers are busy."""
        self._tasks.sendall(json.dumps([_plain(each) for each in tasks]).encode())

    def receive(self) -> list[Done]:
        """What is done; empty where nothing was for a moment. Raises ChildProcessError: a worker has ended."""
        try:
            data = self._results.recv(4 * MESSAGE)
        except TimeoutError:
            data = b"[]"
        if not data or any(_ended(pid) for pid in self._pids):
            raise ChildProcessError("a process of the fetcher ended; was it killed for its memory?")
        return [
            Done(task=_task(task), crc=crc, failure=Failure(**failure) if failure else None)
            for task, crc, failure in json.loads(data)
        ]

    def skip(self, data_set: int) -> None:
        """Let the workers leave what is left of a set."""
        self._skipped[data_set] = 1

    def close(self) -> None:
        """End all."""
        self._tasks.close()
        self._results.close()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


class _Worker:
    """One process."""

    def __init__(self, request: DataRequest, tasks: socket.socket, results: socket.socket, skipped: mmap.mmap) -> None:
        self._request = request
        self._tasks = tasks
        self._results = results
        self._skipped = skipped
        self._token = token_of(request)

    def run(self) -> None:
        threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self) -> None:
        readers: dict[int, Reader] = {}
        trees = {number: tree_dir(each.name) for number, each in enumerate(self._request.sets)}
        while message := self._tasks.recv(4 * MESSAGE):
            answer = []
            for plain in json.loads(message):
                task = _task(plain)
                reader = readers.get(task.data_set)
                if reader is None:
                    source = self._request.sets[task.data_set].source
                    reader = open_reader(source, endpoint=self._request.endpoint, token=self._token)
                    readers[task.data_set] = reader
                crc, failure = 0, None
                try:
                    if self._skipped[task.data_set]:
                        raise NodeError("another file of the data set failed", hint="hvdcloud run again")
                    crc = fetch(reader, task, trees[task.data_set])
                except LocalWriteError as error:
                    failure = _of_disk(error.error, trees[task.data_set])
                except OSError as error:
                    failure = _of_disk(error, trees[task.data_set])
                except HvdcloudError as error:
                    failure = Failure(message=error.message, hint=error.hint, exit_code=int(error.code))
                except Exception as error:  # noqa: BLE001 - one task's failure is its result
                    what = f"{task.name}: {type(error).__name__}: {error}"
                    failure = Failure(message=what, hint="hvdcloud run again", exit_code=int(ExitCode.BUG))
                answer.append((plain, crc, None if failure is None else _fields(failure)))
            self._results.sendall(json.dumps(answer).encode())


def token_of(request: DataRequest) -> AccessToken:
    """For the sources of a request."""
    file = paths.data_credentials_file()
    return AccessToken(file if file.exists() else None, anonymous=request.endpoint is not None)


def fetch(reader: Reader, task: Task, tree: Path) -> int:
    """Bring one task's bytes into the tree; a whole object is marked when its CRC32C is right. Returns the CRC32C.

    Raises CorruptObjectError: it came wrong twice; LocalWriteError, OSError; else as the reader.
    """
    path = f"{tree}/{task.name}"
    for last in (False, True):
        descriptor = _open(path, whole=task.whole)
        try:
            crc = reader.read(
                task.name,
                generation=task.generation,
                size=task.size,
                write=partial(_write, descriptor),
                start=task.start,
                whole=task.whole,
            )
            if not task.whole:
                return crc
            if not task.crc32c or crc32c_text(crc) == task.crc32c:
                mark(descriptor, task.generation)
                return crc
        finally:
            os.close(descriptor)
        if last:
            Path(path).unlink()
    raise corrupt(task.name, reader.url)


def corrupt(name: str, url: str) -> CorruptObjectError:
    """For an object whose bytes have arrived wrong twice."""
    return CorruptObjectError(
        f"{name} in {url} does not verify: its bytes don't have the CRC32C that the bucket promises",
        hint="the object is damaged in the bucket, or on its way; upload it again: hvdcloud data push",
    )


def _open(path: str, *, whole: bool) -> int:
    if not whole:
        return os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with contextlib.suppress(FileExistsError):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    Path(path).unlink()
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)


def _write(descriptor: int, piece: bytes, offset: int) -> None:
    written = os.pwrite(descriptor, piece, offset)
    while written < len(piece):
        written += os.pwrite(descriptor, piece[written:], offset + written)


def _of_disk(error: OSError, tree: Path) -> Failure:
    why = f"writing {error.filename or tree} failed: {error.strerror or error}"
    return Failure(message=why, hint="make the disk usable", exit_code=int(ExitCode.NODE), errno=error.errno)


def _plain(task: Task) -> list[Any]:
    return [task.data_set, task.name, task.size, task.crc32c, task.generation, task.start, task.whole]


def _task(plain: list[Any]) -> Task:
    data_set, name, size, crc32c, generation, start, whole = plain
    return Task(data_set=data_set, name=name, size=size, crc32c=crc32c, generation=generation, start=start, whole=whole)


def _fields(failure: Failure) -> dict[str, Any]:
    return {name: getattr(failure, name) for name in ("message", "hint", "exit_code", "errno")}


def _ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def _die_with(parent: int) -> None:
    """End this process when its parent does, so that nothing writes below what another fetcher has begun with."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
