"""An HTTP server that gives the answers of a test, for clients of Google's APIs."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.standins.http_server import Server


@dataclass
class Call:
    """What arrived."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: bytes
    content_type: str
    quota_project: str | None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """What is answered; `reset`: the connection is closed without an answer."""

    content: Any = None
    status: int = 200
    reset: bool = False
    content_type: str = "application/json"
    delay: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


class Script:
    """Answers each call with the next reply, or with what `handler` makes of it."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.replies: list[Reply] = []
        self.handler: Callable[[Call], Reply] | None = None
        self._lock = threading.Lock()
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                script._serve(self)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                """Quiet."""

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self) -> None:
        """Stop answering."""
        self.server.shutdown()
        self.server.server_close()

    def _serve(self, request: BaseHTTPRequestHandler) -> None:
        length = int(request.headers.get("Content-Length") or 0)
        url = urlsplit(request.path)
        call = Call(
            method=request.command,
            path=url.path,
            query=parse_qs(url.query),
            body=request.rfile.read(length),
            content_type=request.headers.get("Content-Type", ""),
            quota_project=request.headers.get("x-goog-user-project"),
        )
        with self._lock:
            self.calls.append(call)
            reply = self.handler(call) if self.handler else self.replies.pop(0)
        time.sleep(reply.delay)
        if reply.reset:
            request.close_connection = True
            request.connection.shutdown(socket.SHUT_RDWR)
            return
        body = reply.content if isinstance(reply.content, bytes) else json.dumps(reply.content).encode()
        request.send_response(reply.status)
        request.send_header("Content-Type", reply.content_type)
        request.send_header("Content-Length", str(len(body)))
        for name, value in reply.headers.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)


def refusal(status: int, legacy: str, message: str = "no", **info: Any) -> Reply:
    """An error as the API gives it: `legacy` is `errors[].reason`, `info` the ErrorInfo beside it."""
    error: dict[str, Any] = {"code": status, "message": message, "errors": [{"reason": legacy, "message": message}]}
    if info:
        error["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", **info}]
    return Reply({"error": error}, status)
