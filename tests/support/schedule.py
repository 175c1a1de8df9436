"""Which process of pytest-xdist runs which tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.engine_slots import needs_engine, needs_images, needs_machines

_MACHINES = "tests with machines"
KEPT = 400
"""Files and component tests that use no engine: about nine minutes for one process."""


class EngineSlots(LoadScopeScheduling):
    """File by file; at most this many processes at a time run a file that uses the engine, and the rest run the others.

    The first test that needs the images builds them, for minutes where that was never done. Until they are there, other
    processes run what does without.

    Unit and component tests share nothing: they are given out one by one, and some are kept for the end, when a process
    would wait for another one's last file. Files of tests with machines follow one another in one process: what the
    first has pushed and pulled, the others need not.

    Args:
        slots: processes that use the engine, while there is much else to do.
        late_slots: and when there is little.
    """

    def __init__(self, config: pytest.Config, log: Any, *, slots: int, late_slots: int) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._slots = slots
        self._late_slots = late_slots
        self._images_exist = False

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _scope(self._root, file) or nodeid

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        # What is done is not counted again after each of thousands of tests.
        for scope in [scope for scope, completed in workload.items() if all(completed.values())]:
            del workload[scope]
        return super()._pending_of(workload)

    def _assign_work_unit(self, node: Any) -> None:
        users = [each for each, work in self.assigned_work.items() if any(map(self._runs_at_engine, work.items()))]
        others = sum(not self._needs_engine(scope) for scope in self.workqueue)
        free = node in users or len(users) < (self._slots if others > KEPT else self._late_slots)
        scopes = [scope for scope in self.workqueue if free or not self._needs_engine(scope)]
        if not scopes:
            # The others, which use the engine now, run the rest.
            node.shutdown()
            return
        scope = scopes[0]
        if self._images_are_awaited():
            scope = next((scope for scope in scopes if not self._needs_images(scope)), scope)
        self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        test = self.registered_collections[node][item_index]
        self._images_exist = self._images_exist or self._needs_images(self._split_scope(test))
        super().mark_test_complete(node, item_index, duration)

    def _images_are_awaited(self) -> bool:
        """Whether a test that needs the images was given out, and none has ended yet."""
        if self._images_exist:
            return False
        return any(self._needs_images(scope) for work in self.assigned_work.values() for scope in work)

    def _needs_images(self, scope: str) -> bool:
        file = self._root / scope.partition("::")[0]
        return scope == _MACHINES or (needs_engine(file) and needs_images(file))

    def _needs_engine(self, scope: str) -> bool:
        return _needs_engine(self._root, scope)

    def _runs_at_engine(self, work: tuple[str, dict[str, bool]]) -> bool:
        scope, completed = work
        return not all(completed.values()) and self._needs_engine(scope)


@cache
def _scope(root: Path, file: str) -> str:
    """Of a file's tests; empty: each is given out alone."""
    if needs_machines(root / file):
        return _MACHINES
    return "" if Path(file).parent.name == "component" else file


@cache
def _needs_engine(root: Path, scope: str) -> bool:
    return scope == _MACHINES or needs_engine(root / scope.partition("::")[0])
