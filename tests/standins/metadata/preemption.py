"""A metadata server that reports a preemption the way Compute Engine's does: requests hang until something changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs

from tests.support.http_server import Asked, Reply, answering

PATH = "/computeMetadata/v1/instance/preempted"


class Notices:
    """What the server says, and what it was asked.

    Args:
        answers: statuses of the first requests instead of an answer; 0 cuts the connection.
    """

    def __init__(self, answers: list[int]) -> None:
        self.url = ""
        self.answers = answers
        self.etags: list[str] = []
        """`last_etag` of each request."""
        self.asked_at: list[float] = []
        self.wrong: list[str] = []
        """Requests that the real server would have refused."""
        self._changed = threading.Condition()
        self._value = "FALSE"
        self._etag = 1000
        self._restarts = 0
        self._closed = False

    def preempt(self) -> None:
        """The notice."""
        with self._changed:
            self._value = "TRUE"
            self._etag += 1
            self._changed.notify_all()

    def change_etag(self) -> None:
        """Something that has the same value as before."""
        with self._changed:
            self._etag += 1
            self._changed.notify_all()

    def restart(self) -> None:
        """Cut every request that hangs."""
        with self._changed:
            self._restarts += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of those that hang."""
        self._closed = True
        self.restart()

    def answer(self, asked: Asked) -> Reply | None:
        """Of the server; called in a thread for each request."""
        query = {key: values[-1] for key, values in parse_qs(asked.query).items()}
        known = query.get("last_etag", "")
        right = (asked.method, asked.path, asked.headers["Metadata-Flavor"]) == ("GET", PATH, "Google")
        if not right or query.get("wait_for_change") != "true" or float(query.get("timeout_sec", 0)) <= 0:
            self.wrong.append(f"{asked.method} {asked.path}?{asked.query}")
        self.etags.append(known)
        self.asked_at.append(time.monotonic())
        if self.answers:
            status = self.answers.pop(0)
            return Reply(b"no", status=status) if status else None
        with self._changed:
            before = self._restarts
            deadline = time.monotonic() + float(query["timeout_sec"])
            while str(self._etag) == known and self._restarts == before and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            if self._restarts != before or self._closed:
                return None
            return Reply(self._value.encode(), headers={"ETag": str(self._etag)})


@contextmanager
def notices(*answers: int) -> Iterator[Notices]:
    """A server for the block; see Notices."""
    found = Notices(list(answers))
    with answering(found.answer) as found.url:
        try:
            yield found
        finally:
            found.close()
