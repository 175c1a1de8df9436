"""Small objects, which one thread of each process fetches over many connections.

Where each connection has a thread, the threads' waiting for each other costs more than a small object's bytes. This one
waits for all connections at once. It knows one answer: status 200, with the bytes that the CRC32C was promised for. An
object that is answered otherwise is left to the threads of workers.py, which try again and know what each error means.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import queue
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import google_crc32c

from hvdcloud.errors import HvdcloudError
from hvdcloud.node.data.sets import DataRequest
from hvdcloud.node.data.tasks import (
    MESSAGE,
    Done,
    Results,
    Task,
    failure_of_disk,
    failure_of_skipped,
    new_file,
    tasks_message,
    tasks_of,
    write_at,
)
from hvdcloud.node.data.tree import mark, tree_dir
from hvdcloud.storage.access_token import AccessToken
from hvdcloud.storage.checksum import crc32c_text
from hvdcloud.storage.gcs_reader import BYTES_AS_STORED, ENDPOINT, TIMEOUTS, ObjectTargets
from hvdcloud.storage.http_connection import opened, parsed_head, request_bytes
from hvdcloud.storage.reader import bucket_and_prefix, is_bucket

LARGEST = 128 << 10
"""Bytes of an object that is fetched here, at most. It is in memory until it is verified."""
CONNECTIONS = 32
"""Of each process. Small objects wait for the bucket's answers, not for a processor."""
_OPENERS = 4
_HEAD = 4 << 10
# An encrypted connection gives out one record at a time, of 16 KiB at most: less than that is never asked for, so that
# no bytes are left where `epoll` does not see them.
_LEAST = 16 << 10
_ANSWERS = 32
_ANSWER_SECONDS = 0.1
_LOOK_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class _Exchange:
    """A connection, and the object that it brings."""

    wire: socket.socket
    task: Task | None = None
    received: bytes = b""
    since: float = 0.0


class _Opener:
    """Opens connections in threads of its own: meanwhile others bring many small objects.

    Attributes:
        told: has a byte to read for each that is in `found`.
        found: connections that do not block; None for one that failed.
    """

    def __init__(self, url: str) -> None:
        self.told, self._tell = socket.socketpair()
        self.found: queue.SimpleQueue[socket.socket | None] = queue.SimpleQueue()
        self._url = url
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_OPENERS):
            threading.Thread(target=self._work, daemon=True).start()

    def open(self) -> None:
        self._asked.put(None)

    def _work(self) -> None:
        while True:
            self._asked.get()
            wire = None
            with contextlib.suppress(OSError):
                wire = opened(self._url, seconds=TIMEOUTS[0]).sock
                wire.settimeout(0)
            self.found.put(wire)
            self._tell.sendall(b"1")


class SmallObjects:
    """Fetches the small objects of a process; for one thread.

    Args:
        tasks, results: messages of tasks, and of what was done.
        leave: takes a message with tasks for the other threads; may wait.
        skipped: a byte for each set, not 0 once another one of its objects has failed.
    """

    def __init__(
        self,
        request: DataRequest,
        *,
        tasks: socket.socket,
        results: socket.socket,
        leave: Callable[[bytes], object],
        skipped: mmap.mmap,
    ) -> None:
        self._targets = {
            number: ObjectTargets(*bucket_and_prefix(each.source))
            for number, each in enumerate(request.sets)
            if is_bucket(each.source)
        }
        self._trees = [os.fspath(tree_dir(each.name)) for each in request.sets]
        self._url = request.endpoint or ENDPOINT
        self._authority = urlsplit(self._url).netloc
        self._tasks, self._results = tasks, results
        self._leave_message, self._skipped = leave, skipped
        self._waiting: deque[Task] = deque()
        self._exchanges: dict[int, _Exchange] = {}
        self._idle: list[_Exchange] = []
        self._opening = 0
        self._open_after = 0.0
        self._answers_are_plain = True
        self._files = self._size = 0
        self._others: list[Done] = []
        self._answered = 0.0
        self._now = time.monotonic()

    def run(self, token: AccessToken) -> None:
        """Returns when there are no more tasks."""
        self._token = token
        opener = _Opener(self._url)
        told = opener.told.fileno()
        looked = 0.0
        with select.epoll() as self._poll:
            # Says it once of each message: where there is no room for it yet, it is asked for later.
            self._poll.register(self._tasks, select.EPOLLIN | select.EPOLLET)
            self._poll.register(told, select.EPOLLIN)
            while self._take():
                self._drop_skipped()
                self._begin(opener)
                for descriptor, _ in self._poll.poll(_ANSWER_SECONDS if self._files or self._others else _LOOK_SECONDS):
                    if exchange := self._exchanges.get(descriptor):
                        self._receive(exchange)
                    elif descriptor == told:
                        self._add_opened(opener)
                self._now = time.monotonic()
                self._answer()
                if self._now - looked >= _LOOK_SECONDS:
                    looked = self._now
                    self._give_up_stalled()

    def _take(self) -> bool:
        """Take messages while connections are free. Returns whether there may be others."""
        while len(self._waiting) <= len(self._idle) + CONNECTIONS - len(self._exchanges):
            try:
                message = self._tasks.recv(4 * MESSAGE, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not message:
                return False
            self._waiting.extend(tasks_of(message))
            self._drop_skipped()
            self._answer()
        return True

    def _drop_skipped(self) -> None:
        """Answer what waits and is no longer wanted."""
        if self._skipped.find(b"\1") < 0:
            return
        for _ in range(len(self._waiting)):
            task = self._waiting.popleft()
            if self._skipped[task.data_set]:
                self._others.append(Done(task=task, failure=failure_of_skipped()))
            else:
                self._waiting.append(task)

    def _begin(self, opener: _Opener) -> None:
        """Ask for what waits, on all connections that are free, and have others opened."""
        if not self._answers_are_plain:
            self._leave_waiting()
        while self._waiting and self._idle:
            task, each = self._waiting.popleft(), self._idle.pop()
            each.task, each.since = task, self._now
            try:
                target = self._targets[task.data_set].of(task.name, task.generation)
                headers = {**BYTES_AS_STORED, **self._token.header()}
                each.wire.send(request_bytes(target, self._authority, headers))
            except (OSError, HvdcloudError):
                # No token, or the server has closed this connection meanwhile.
                self._give_up(each)
        if self._now >= self._open_after:
            wanted = min(len(self._waiting), CONNECTIONS - len(self._exchanges)) - self._opening
            for _ in range(wanted):
                self._opening += 1
                opener.open()

    def _add_opened(self, opener: _Opener) -> None:
        for _ in opener.told.recv(CONNECTIONS):
            self._opening -= 1
            wire = opener.found.get()
            if wire is None:
                self._open_after = self._now + _LOOK_SECONDS
                if not self._exchanges:
                    self._leave_waiting()
                continue
            exchange = _Exchange(wire)
            self._exchanges[wire.fileno()] = exchange
            self._idle.append(exchange)
            self._poll.register(wire, select.EPOLLIN)

    def _receive(self, each: _Exchange) -> None:
        task = each.task
        try:
            data = each.wire.recv(_LEAST if task is None else max(_LEAST, _HEAD + task.size - len(each.received)))
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError:
            data = b""
        if task is None or not data:
            self._give_up(each)
            return
        each.since = self._now
        if each.received:
            data = each.received + data
        each.received = data
        end = data.find(b"\r\n\r\n")
        if end < 0 and len(data) < _HEAD:
            return
        try:
            head = parsed_head(data[: end + 2])
        except ConnectionError:
            head = None
        if head is None or head.status != 200 or head.length != task.size or len(data) > end + 4 + task.size:
            self._answers_are_plain = head is None or head.status != 200 or head.length is not None
            self._give_up(each)
            return
        if len(data) < end + 4 + task.size:
            return
        each.task, each.received = None, b""
        if head.closes:
            self._close(each)
        else:
            self._idle.append(each)
        self._keep(task, data[end + 4 :])

    def _keep(self, task: Task, content: bytes) -> None:
        """Write an object's bytes, if they are right."""
        if task.crc32c and crc32c_text(google_crc32c.value(content)) != task.crc32c:
            self._leave([task])
            return
        tree = self._trees[task.data_set]
        try:
            descriptor = new_file(f"{tree}/{task.name}")
            try:
                write_at(descriptor, content, 0)
                mark(descriptor, task.generation)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._others.append(Done(task=task, failure=failure_of_disk(error, tree)))
        else:
            self._files += 1
            self._size += task.size

    def _answer(self) -> None:
        """Say what is done, now and then."""
        count = self._files + len(self._others)
        if count >= _ANSWERS or (count and self._now - self._answered >= _ANSWER_SECONDS):
            self._results.sendall(Results(files=self._files, size=self._size, others=self._others).to_message())
            self._files, self._size, self._others, self._answered = 0, 0, [], self._now

    def _give_up_stalled(self) -> None:
        for each in list(self._exchanges.values()):
            if each.task is not None and self._now - each.since > TIMEOUTS[1]:
                self._give_up(each)

    def _give_up(self, each: _Exchange) -> None:
        """Close a connection; its object is left to the other threads."""
        self._close(each)
        if each.task is not None:
            self._leave([each.task])

    def _close(self, each: _Exchange) -> None:
        del self._exchanges[each.wire.fileno()]
        each.wire.close()
        if each in self._idle:
            self._idle.remove(each)

    def _leave_waiting(self) -> None:
        while self._waiting:
            self._leave([self._waiting.popleft()])

    def _leave(self, tasks: list[Task]) -> None:
        self._leave_message(tasks_message(tasks))
