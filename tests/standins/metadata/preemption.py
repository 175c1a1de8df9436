"""A metadata server that reports a preemption the way Compute Engine's does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
        self.asked = 0
        """How often."""
        self.wrong: list[str] = []
        """Requests that the real server would have refused."""
        self._value = b"FALSE"

    def preempt(self) -> None:
        """The notice."""
        self._value = b"TRUE"

    def answer(self, asked: Asked) -> Reply | None:
        """Of the server; called in a thread for each request."""
        self.asked += 1
        if (asked.method, asked.path, asked.headers["Metadata-Flavor"]) != ("GET", PATH, "Google"):
            self.wrong.append(f"{asked.method} {asked.path}?{asked.query}")
        if self.answers:
            status = self.answers.pop(0)
            return Reply(b"no", status=status) if status else None
        return Reply(self._value)


@contextmanager
def notices(*answers: int) -> Iterator[Notices]:
    """A server for the block; see Notices."""
    found = Notices(list(answers))
    with answering(found.answer) as found.url:
        yield found
