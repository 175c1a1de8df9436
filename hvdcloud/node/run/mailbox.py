"""What other threads, and signal handlers, ask of a main loop that waits in a selector."""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Callable


class Mailbox:
    """Calls that wait for the main loop; register it for reading, with `deliver`."""

    def __init__(self) -> None:
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        """Can be read when something was posted."""
        return self._reader

    def post(self, call: Callable[[], None]) -> None:
        """Have something done by the main loop; from any thread or signal handler."""
        self._posted.append(call)
        # A full pipe wakes the loop just as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"!")

    def deliver(self) -> None:
        """By the main loop: do all that was posted."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)
        while self._posted:
            self._posted.popleft()()
