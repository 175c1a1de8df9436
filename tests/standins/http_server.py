"""The HTTP server of the stand-ins."""

from __future__ import annotations

import sys
from http.server import ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Answers each connection in a thread of its own. That a client goes away is no error: some tests kill theirs."""

    # Clients connect many times at once; what is over that number waits for a second.
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)
