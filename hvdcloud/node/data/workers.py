"""The processes that fetch: each with threads, each thread with one connection, and one thread for all small objects.

One process's interpreter lock would be the limit. Tasks and results are messages of SOCK_SEQPACKET sockets: each thread
that is free takes one whole message, so the kernel divides the work, and a full socket holds back who feeds it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import socket
import threading
import traceback
from functools import partial
from pathlib import Path

from hvdcloud.errors import ExitCode, HvdcloudError
from hvdcloud.node import machine
from hvdcloud.node.data.sets import DataRequest
from hvdcloud.node.data.small_objects import LARGEST, SmallObjects
from hvdcloud.node.data.tasks import (
    MESSAGE,
    Done,
    Failure,
    Results,
    Task,
    failure_of,
    failure_of_disk,
    failure_of_skipped,
    new_file,
    tasks_message,
    tasks_of,
    write_at,
)
from hvdcloud.node.data.tree import mark, tree_dir
from hvdcloud.storage.access_token import AccessToken
from hvdcloud.storage.base import CorruptObjectError
from hvdcloud.storage.checksum import crc32c_text
from hvdcloud.storage.gcs_reader import LocalWriteError
from hvdcloud.storage.reader import Reader, is_bucket, open_reader

THREADS = 16
LEAST_PROCESSES, MOST_PROCESSES = 4, 8
"""Objects wait for the bucket's answers, not for a processor: 64 connections where there are two cores, too."""
_PR_SET_PDEATHSIG = 1


class Workers:
    """All of them; made before this process has threads."""

    def __init__(self, request: DataRequest) -> None:
        self._tasks, tasks = _socket_pair()
        self._small_tasks, small_tasks = _socket_pair()
        self._results, results = _socket_pair()
        self._results.settimeout(0.2)
        self._sources = [each.source for each in request.sets]
        # One byte for each set, which all processes see.
        self._skipped = mmap.mmap(-1, max(1, len(request.sets)))
        self._pids: list[int] = []
        parent = os.getpid()
        for _ in range(max(LEAST_PROCESSES, min(MOST_PROCESSES, len(os.sched_getaffinity(0))))):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    _die_with(parent)
                    self._small_tasks.close()
                    self._results.close()
                    small = SmallObjects(
                        request, tasks=small_tasks, results=results, leave=self._tasks.sendall, skipped=self._skipped
                    )
                    _Worker(request, tasks, results, self._skipped).run(small)
                    code = 0
                except Exception:  # noqa: BLE001 - the last frame of a process: its end is noticed by `receive`
                    traceback.print_exc()
                finally:
                    os._exit(code)
            self._pids.append(pid)
        for each in (tasks, small_tasks, results):
            each.close()

    def takes_as_small(self, data_set: int, size: int) -> bool:
        """Whether an object of this size is fetched as one of many small ones; such tasks are sent together."""
        return 0 < size <= LARGEST and is_bucket(self._sources[data_set])

    def send(self, tasks: list[Task]) -> None:
        """Hand on tasks, all or none of them small; waits while the workers are busy."""
        first = tasks[0]
        small = first.whole and self.takes_as_small(first.data_set, first.size)
        (self._small_tasks if small else self._tasks).sendall(tasks_message(tasks))

    def receive(self) -> Results:
        """What is done; nothing where nothing was for a moment. Raises ChildProcessError: a worker has ended."""
        try:
            data = self._results.recv(4 * MESSAGE)
        except TimeoutError:
            data = b"[[], 0, 0]"
        if not data or any(_ended(pid) for pid in self._pids):
            raise ChildProcessError("a process of the fetcher ended; was it killed for its memory?")
        return Results.from_message(data)

    def skip(self, data_set: int) -> None:
        """Let the workers leave what is left of a set."""
        self._skipped[data_set] = 1

    def close(self) -> None:
        self._tasks.close()
        self._small_tasks.close()
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
        self._token = AccessToken(on_vm=machine.on_vm())

    def run(self, small: SmallObjects) -> None:
        for _ in range(THREADS):
            threading.Thread(target=self._serve, daemon=True).start()
        small.run(self._token)

    def _serve(self) -> None:
        readers: dict[int, Reader] = {}
        trees = {number: tree_dir(each.name) for number, each in enumerate(self._request.sets)}
        while message := self._tasks.recv(4 * MESSAGE):
            files = size = 0
            others = []
            for task in tasks_of(message):
                reader = readers.get(task.data_set)
                if reader is None:
                    source = self._request.sets[task.data_set].source
                    reader = open_reader(source, endpoint=self._request.endpoint, token=self._token)
                    readers[task.data_set] = reader
                crc, failure = 0, None
                try:
                    if self._skipped[task.data_set]:
                        failure = failure_of_skipped()
                    else:
                        crc = fetch(reader, task, trees[task.data_set])
                except LocalWriteError as error:
                    failure = failure_of_disk(error.error, trees[task.data_set])
                except OSError as error:
                    failure = failure_of_disk(error, trees[task.data_set])
                except HvdcloudError as error:
                    failure = failure_of(error)
                except Exception as error:  # noqa: BLE001 - one task's failure is its result
                    what = f"{task.name}: {type(error).__name__}: {error}"
                    failure = Failure(message=what, hint="hvdcloud run again", exit_code=int(ExitCode.BUG))
                if task.whole and failure is None:
                    files += 1
                    size += task.size
                else:
                    others.append(Done(task=task, crc=crc, failure=failure))
            self._results.sendall(Results(files=files, size=size, others=others).to_message())


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
                write=partial(write_at, descriptor),
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
        hint="the object is damaged in the bucket, or on its way; upload it again",
    )


def _open(path: str, *, whole: bool) -> int:
    return new_file(path) if whole else os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _ended(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] != 0


def _die_with(parent: int) -> None:
    """End this process when its parent does, so that nothing writes below what another fetcher has begun with."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends, between which there is room for a few messages."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in ends:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MESSAGE)
    return ends
