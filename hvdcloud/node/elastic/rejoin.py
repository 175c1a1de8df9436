"""Attempts to prepare nodes that were lost, or are new, until they can take part in the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0


@dataclass
class _Attempts:
    """The attempts for one node."""

    at: float
    """Monotonic seconds of the next one."""
    pause: float = _FIRST_PAUSE
    busy: bool = False


class Rejoins:
    """The attempts for all nodes, each in a thread of its own.

    Args:
        prepare: prepares a node; blocks, and raises where that fails.
        post: has a function called by the main loop.
        prepared: called in the main loop with a node that is ready.
        refused: called in the main loop with a node, and why it is not ready yet.
    """

    def __init__(
        self,
        *,
        prepare: Callable[[str], None],
        post: Callable[[Callable[[], None]], None],
        prepared: Callable[[str], None],
        refused: Callable[[str, Exception], None],
    ) -> None:
        self._prepare = prepare
        self._post = post
        self._prepared = prepared
        self._refused = refused
        self._attempts: dict[str, _Attempts] = {}

    def try_due(self, nodes: Iterable[str], *, now: float) -> None:
        """Start the attempts that are due for all nodes that should take part and do not. `now`: monotonic seconds."""
        for node in nodes:
            attempts = self._attempts.setdefault(node, _Attempts(at=now))
            if not attempts.busy and now >= attempts.at:
                attempts.busy = True
                threading.Thread(target=self._try, args=(node, attempts), name="provision", daemon=True).start()

    def later(self, node: str) -> None:
        """Put the next attempt off: the node was lost, or the last one failed."""
        attempts = self._attempts.setdefault(node, _Attempts(at=0.0))
        attempts.at = time.monotonic() + attempts.pause
        attempts.pause = min(2 * attempts.pause, _LONGEST_PAUSE)

    def forget(self, node: str) -> None:
        """Forget the attempts for a node that is back, or was replaced."""
        self._attempts.pop(node, None)

    def _try(self, node: str, attempts: _Attempts) -> None:
        failure: Exception | None = None
        try:
            self._prepare(node)
        except Exception as error:  # noqa: BLE001 - reported by the main loop, and tried again
            failure = error
        self._post(lambda: self._tried(node, attempts, failure))

    def _tried(self, node: str, attempts: _Attempts, failure: Exception | None) -> None:
        attempts.busy = False
        if self._attempts.get(node) is not attempts:
            return
        if failure is None:
            self._prepared(node)
        else:
            self.later(node)
            self._refused(node, failure)
