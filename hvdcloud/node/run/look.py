"""An agent's looks at the ranks of its node: whether they do anything, and where they are."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from hvdcloud.node import paths
from hvdcloud.node.monitor.stacks import Taker
from hvdcloud.node.monitor.stillness import NodeSample, Signs, compare
from hvdcloud.node.records.spec import Spec

Ranks = Mapping[int, int]
"""The process that each rank has started."""


class Looker:
    """Looks at the ranks, one look at a time, each in a thread of its own."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._before: NodeSample | None = None
        self._working = threading.Lock()

    @functools.cached_property
    def _taker(self) -> Taker:
        return Taker(self._spec.name, paths.checkpoints_dir(self._spec.run))

    def look(self, ranks: Ranks, *, fresh: bool, tell: Callable[[dict[str, Any]], None]) -> None:
        """Compare what the ranks do with the look before.

        Args:
            fresh: do not compare: something has moved since.
            tell: gets {compared, signs, busy, busy_main, written}; `written`: for how many seconds no checkpoint
                has changed.
        """
        self._start("look", lambda: tell(self._look(ranks, fresh=fresh)))

    def stacks(self, ranks: Ranks, *, tell: Callable[[dict[str, Any]], None]) -> None:
        """Take the ranks' stacks; `tell` gets {ranks}, as runs/stacks.py reads them."""
        self._start("stacks", lambda: tell(self._stacks(ranks)))

    def _start(self, name: str, work: Callable[[], None]) -> None:
        threading.Thread(target=work, name=name, daemon=True).start()

    def _look(self, ranks: Ranks, *, fresh: bool) -> dict[str, Any]:
        with self._working:
            before = None if fresh else self._before
            after = self._before = self._taker.sample(ranks)
            written_at = self._taker.written_at
        signs = compare(before, after) if before is not None else Signs()
        return {
            "compared": before is not None,
            "signs": list(signs.work[:8]),
            "busy": list(signs.busy),
            "busy_main": list(signs.busy_main),
            "written": None if written_at is None else max(0.0, time.time() - written_at),
        }

    def _stacks(self, ranks: Ranks) -> dict[str, Any]:
        with self._working:
            return {"ranks": [each.to_json() for each in self._taker.stacks(ranks)]}
