"""The progress of what runs at the same time, as plain lines; on a terminal, `live_steps.py` draws it."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Steps:
    """The progress of several concurrent operations, each with the step it is at.

    Every method may be called from any thread. This one prints a line whenever a step changes; how far a step is would
    be noise in a log.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._steps: dict[str, str] = {}

    def update(
        self,
        key: str,
        step: str,
        *,
        done: float | Callable[[], float] | None = None,
        total: float | None = None,
        in_bytes: bool = False,
        if_slow: bool = False,
    ) -> None:
        """Show which step `key` is at.

        Args:
            done: how much of `total`, both in bytes if `in_bytes`; a function is asked whenever it is shown.
            if_slow: on a terminal it is shown once it has taken a second, elsewhere not at all.
        """
        with self._lock:
            is_new = self._steps.get(key) != step
            self._steps[key] = step
        if is_new and not if_slow:
            self._say(f"{key}: {step}")

    def output(self, key: str, line: str) -> None:
        """Show, on a terminal, what a step printed last."""

    def drop(self, key: str) -> None:
        """Forget it."""
        with self._lock:
            self._steps.pop(key, None)

    def finish(self, key: str, step: str = "done") -> None:
        """Show that `key` is complete."""
        self.update(key, step)
