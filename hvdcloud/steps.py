"""The progress of what runs at the same time, as plain lines; on a terminal, `live_steps.py` draws it."""

from __future__ import annotations

import threading
from collections.abc import Callable

NOTICEABLE_SECONDS = 1.0
"""What takes longer gets a line."""


class Steps:
    """The progress of several concurrent operations, each with the step it is at.

    Every method may be called from any thread. This one prints a line whenever a step changes; how far a step is would
    be noise in a log.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._steps: dict[tuple[str, int], str] = {}
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()

    def update(
        self,
        key: str,
        step: str,
        *,
        part: int = 0,
        done: float | Callable[[], float] | None = None,
        total: float | None = None,
        in_bytes: bool = False,
        after: float = 0.0,
    ) -> None:
        """Show which step `key` is at.

        Args:
            part: tells steps of the same `key` from each other that run at the same time.
            done: how much of `total`, both in bytes if `in_bytes`; a function is asked whenever it is shown.
            after: seconds from which on it is shown.
        """
        with self._lock:
            if self._steps.get((key, part)) == step:
                return
            self._steps[key, part] = step
        if not after:
            self._say(f"{key}: {step}")
            return
        timer = threading.Timer(after, self._say_if_still, args=(key, part, step))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _say_if_still(self, key: str, part: int, step: str) -> None:
        with self._lock:
            still = self._steps.get((key, part)) == step
        if still:
            self._say(f"{key}: {step}")

    def output(self, key: str, line: str, *, part: int = 0) -> None:
        """Show, on a terminal, what a step printed last."""

    def drop(self, key: str, *, part: int = 0) -> None:
        """Forget it."""
        with self._lock:
            self._steps.pop((key, part), None)

    def finish(self, key: str, step: str = "done") -> None:
        """Show that `key` is complete."""
        self.update(key, step)
