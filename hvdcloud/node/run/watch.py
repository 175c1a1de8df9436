"""The supervisor's watch over ranks that may be stuck: asks the agents, and writes the stacks down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from hvdcloud.node.files import write_json
from hvdcloud.node.records import state
from hvdcloud.node.run.lease import Lease
from hvdcloud.node.run.stuck import StuckWatch
from hvdcloud.runs.stacks import Stuck


class RankWatch:
    """Watches the ranks of one run.

    Args:
        limit: seconds without any sign of work; None: they are not watched.
        leases: by node, as they are now.
    """

    def __init__(self, run: str, limit: float | None, leases: Mapping[str, Lease]) -> None:
        self._run = run
        self._leases = leases
        self._watch = StuckWatch(limit, now=time.monotonic()) if limit is not None else None

    def output(self, data: bytes) -> None:
        """The log has grown by this, which may be nothing."""
        if self._watch is not None and data:
            self._watch.output(data, now=time.monotonic())

    def heard(self, node: str, message: Mapping[str, Any]) -> None:
        """An agent has answered."""
        if self._watch is None:
            return
        if message.get("type") == "looked":
            self._watch.looked(node, message, now=time.monotonic())
        else:
            self._watch.took(node, message)

    def turn(self, nodes: Collection[str]) -> Stuck | None:
        """Ask what is due.

        Args:
            nodes: those that have ranks; empty while ranks start or find each other.

        Returns:
            That the run is stuck, once; its stacks are written down.
        """
        if self._watch is None:
            return None
        now = time.monotonic()
        question = self._watch.question(nodes, now=now)
        if question is not None:
            for node in nodes:
                if (lease := self._leases.get(node)) is not None:
                    lease.channel.send(question)
        if (found := self._watch.verdict(now=now)) is None:
            return None
        stuck, stacks = found
        # On a full disk the run's state still says where the ranks are.
        with contextlib.suppress(OSError):
            value = {"v": 1, "run": self._run, "t": round(time.time(), 3), "ranks": [each.to_json() for each in stacks]}
            write_json(state.stacks_file(self._run), value)
        return stuck
