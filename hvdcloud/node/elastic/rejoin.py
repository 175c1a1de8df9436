"""Nodes that were lost, or are new: tried again and again until they can be made ready for the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 30.0


@dataclass
class _Attempts:
    """To get one node back."""

    at: float
    """Monotonic seconds of the next one."""
    pause: float = _FIRST_PAUSE
    busy: bool = False


class Rejoins:
    """The attempts for all nodes, each in a thread of its own.

    Args:
        prepare: makes a node ready; blocks, and raises where that fails.
        post: has something done by the main loop.
        prepared: is told, in the main loop, of a node that is ready.
        refused: is told, in the main loop, why one is not yet.
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

    def look(self, nodes: Iterable[str], *, now: float) -> None:
        """Try those whose time has come.

        Args:
            nodes: all that are wanted.
            now: monotonic seconds.
        """
        for node in nodes:
            attempts = self._attempts.setdefault(node, _Attempts(at=now))
            if not attempts.busy and now >= attempts.at:
                attempts.busy = True
                threading.Thread(target=self._try, args=(node, attempts), name="hand over", daemon=True).start()

    def later(self, node: str) -> None:
        """It was lost (again): not at once."""
        attempts = self._attempts.setdefault(node, _Attempts(at=0.0))
        attempts.at = time.monotonic() + attempts.pause
        attempts.pause = min(2 * attempts.pause, _LONGEST_PAUSE)

    def forget(self, node: str) -> None:
        """It is back, or a new one: what was tried before does not count."""
        self._attempts.pop(node, None)

    def _try(self, node: str, attempts: _Attempts) -> None:
        failure: Exception | None = None
        try:
            self._prepare(node)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told, and tried again
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
