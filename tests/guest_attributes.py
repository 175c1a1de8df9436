"""A metadata server as nodes see it while they come up: it takes the guest attribute `hvdcloud/status`."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

ATTRIBUTE = "/computeMetadata/v1/instance/guest-attributes/hvdcloud/status"


class Metadata:
    """A metadata server that takes guest attributes.

    Args:
        answers: statuses of the first requests; 0 cuts the connection. After them, 200.
    """

    def __init__(self, answers: list[int]) -> None:
        self.answers = answers
        self.taken: list[dict[str, Any]] = []
        self.asked = 0
        self.url = ""


@contextmanager
def metadata_server(*answers: int, host: str = "127.0.0.1") -> Iterator[Metadata]:
    """A server that answers so; see Metadata."""
    metadata = Metadata(list(answers))

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            metadata.asked += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = metadata.answers.pop(0) if metadata.answers else 200
            if status == 0:
                self.close_connection = True
                return
            if self.path != ATTRIBUTE or self.headers["Metadata-Flavor"] != "Google":
                status = 404
            if status == 200:
                metadata.taken.append(json.loads(body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with http.server.ThreadingHTTPServer((host, 0), Handler) as server:
        metadata.url = f"http://{host}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield metadata
        finally:
            server.shutdown()
            thread.join()
