"""What the fetcher shows of its work: the states of all sets."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from hvdcloud.node.data.sets import WAITING, DataState


class Board:
    """The states, for one thread.

    Args:
        publish: takes all states whenever one has changed.
    """

    def __init__(self, names: Iterable[str], publish: Callable[[tuple[DataState, ...]], None]) -> None:
        self._states = {name: DataState(name=name) for name in names}
        self._began: dict[str, float] = {}
        self._publish = publish

    def update(self, name: str, **changes: Any) -> None:
        """Change fields of a set's state; its clock starts when it is no longer waiting."""
        changed = replace(self._states[name], **changes)
        if changed.phase != WAITING:
            now = time.monotonic()
            changed = replace(changed, seconds=round(now - self._began.setdefault(name, now), 3))
        self._states[name] = changed
        # A full disk must not end the fetch: it has its own error for that.
        with contextlib.suppress(OSError):
            self._publish(tuple(self._states.values()))
