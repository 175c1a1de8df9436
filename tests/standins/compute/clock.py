"""Things that happen later, on one thread."""

from __future__ import annotations

import heapq
import itertools
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any


class Timer:
    """What was asked for; may be cancelled until it happens."""

    __slots__ = ("action", "arguments", "cancelled")

    def __init__(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.action = action
        self.arguments = arguments
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """Runs actions when they are due. An action that raises is a bug: it's printed and kept in `failures`."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []
        self._wake = threading.Condition()
        self._due: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="emulator-clock", daemon=True)
        self._thread.start()

    def after(self, seconds: float, action: Callable[..., None], *arguments: Any) -> Timer:
        timer = Timer(action, arguments)
        with self._wake:
            heapq.heappush(self._due, (time.monotonic() + seconds, next(self._order), timer))
            if self._due[0][2] is timer:
                self._wake.notify()
        return timer

    def guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        """Run it now, on this thread, with the same care."""
        try:
            action(*arguments)
        except Exception as error:  # Reported, and raised again at the end of the test.
            self.failures.append(error)
            traceback.print_exception(error, file=sys.stderr)

    def clear(self) -> None:
        with self._wake:
            self._due.clear()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._closed and (not self._due or self._due[0][0] > time.monotonic()):
                    self._wake.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._closed:
                    return
                timer = heapq.heappop(self._due)[2]
            if not timer.cancelled:
                self.guarded(timer.action, *timer.arguments)


def timestamp(*, ahead: float = 0) -> str:
    """Now, or this many seconds from now, as the API writes it (RFC 3339)."""
    moment = datetime.fromtimestamp(time.time() + ahead, tz=timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
