"""What every node does before Horovod is started again, after it ended because of a loss.

First all nodes end their ranks and upload what they have, then all of them fetch the newest of all: one that fetched by
itself could miss what another has not uploaded yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from hvdcloud.node.run.lease import Lease

STEP_SECONDS = 300.0
"""How long a node may take for each of the two steps."""
RESET = "reset"
GATHER = "gather"


class Restart:
    """Begins at once; a node that disappears from `leases` is no longer waited for. All times are monotonic seconds."""

    def __init__(self, leases: Mapping[str, Lease], *, now: float) -> None:
        self._leases = leases
        self._waiting: set[str] = set()
        self._begin(RESET, now=now)

    def did(self, node: str, step: str) -> None:
        """Note that a node has done a step."""
        if step == self._step:
            self._waiting.discard(node)

    def late(self, *, now: float) -> list[str]:
        """The nodes that take too long."""
        return sorted(self._waiting & self._leases.keys()) if now >= self._until else []

    def is_over(self, *, now: float) -> bool:
        """Whether Horovod can be started. Called in every round: the second step begins when the first is done."""
        if self._step == RESET and not self._waiting & self._leases.keys():
            self._begin(GATHER, now=now)
        return not self._waiting & self._leases.keys()

    def _begin(self, step: str, *, now: float) -> None:
        self._step = step
        self._until = now + STEP_SECONDS
        for node, lease in self._leases.items():
            if lease.ready:
                self._waiting.add(node)
                lease.channel.send({"type": step})
