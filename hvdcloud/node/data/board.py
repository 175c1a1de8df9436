"""What the fetcher shows of its work: the states of all sets, written a few times a second."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hvdcloud.node.data.sets import FAILED, READY, WAITING, DataState

SECONDS = 0.3


class Board:
    """Safe to use from several threads; a context, at whose end the last states are written.

    Args:
        publish: takes all states, as often as they change.
    """

    def __init__(self, names: Iterable[str], publish: Callable[[tuple[DataState, ...]], None]) -> None:
        self._states = {name: DataState(name=name) for name in names}
        self._began: dict[str, float] = {}
        self._publish = publish
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="hvdcloud-data-states", daemon=True)

    def __enter__(self) -> Board:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._show()

    def update(self, name: str, **changes: Any) -> None:
        """Change fields of a set's state; its clock starts when it is no longer waiting."""
        with self._lock:
            changed = replace(self._states[name], **changes)
            if changed.phase != WAITING:
                began = self._began.setdefault(name, time.monotonic())
                changed = replace(changed, seconds=round(time.monotonic() - began, 3))
            self._states[name] = changed

    def state(self, name: str) -> DataState:
        with self._lock:
            return self._states[name]

    def states(self) -> tuple[DataState, ...]:
        """All of them, in the order of the request."""
        with self._lock:
            return tuple(self._states.values())

    def _work(self) -> None:
        while not self._ended.wait(SECONDS):
            for each in self.states():
                if each.phase not in (READY, FAILED):
                    self.update(each.name)
            # A full disk must not end the fetch: it has its own error for that.
            with contextlib.suppress(OSError):
                self._show()

    def _show(self) -> None:
        self._publish(self.states())
