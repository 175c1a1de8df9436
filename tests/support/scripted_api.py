"""An HTTP server that gives the answers of a test, for clients of Google's APIs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from tests.support import http_server
from tests.support.http_server import Asked, answering


@dataclass
class Call:
    """What arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    quota_project: str | None


@dataclass
class Reply:
    """What is answered; `reset`: the connection is closed without an answer."""

    content: Any = None
    status: int = 200
    reset: bool = False
    content_type: str = "application/json"
    delay: float = 0.0


class Script:
    """Answers each call with the next reply, or with what `handler` makes of it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        self.handler: Callable[[Call], Reply] | None = None
        self._lock = threading.Lock()
        self._serving = ExitStack()
        self.url = self._serving.enter_context(answering(self._answer))

    def close(self) -> None:
        """Stop answering."""
        self._serving.close()

    def _answer(self, asked: Asked) -> http_server.Reply | None:
        call = Call(
            method=asked.method,
            path=asked.path,
            query=parse_qs(asked.query),
            body=asked.body,
            quota_project=asked.headers.get("x-goog-user-project"),
        )
        with self._lock:
            self.calls.append(call)
            reply = self.handler(call) if self.handler else self.replies.pop(0)
        time.sleep(reply.delay)
        if reply.reset:
            return None
        kind = {"Content-Type": reply.content_type} if isinstance(reply.content, bytes) else {}
        return http_server.Reply(reply.content, status=reply.status, headers=kind)


def refusal(status: int, legacy: str, message: str = "no") -> Reply:
    """An error as the API gives it: `legacy` is `errors[].reason`."""
    error = {"code": status, "message": message, "errors": [{"reason": legacy, "message": message}]}
    return Reply({"error": error}, status)
