"""How the workers of an elastic run find each other again after a loss, and when they will not.

A worker notices that another is gone only when their connection breaks, which after a crash, a freeze or a cut cable it
does not do by itself. So every agent breaks its workers' connections (mesh/tcp.py).
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Mapping

from hvdcloud.node.elastic.workers import Workers
from hvdcloud.node.run.lease import Lease
from hvdcloud.node.run.log import RunLog
from hvdcloud.node.run.outcome import CONSEQUENCE_SECONDS

WAKE_SECONDS = 3.0
"""How soon workers may be disconnected again: before, they are just finding each other."""
NEW_SECONDS = 3.0
"""A connection that is younger when a loss is noticed may be one that the workers have made since the loss."""
AGAIN_SECONDS = 4.0
"""If they have not met again by then, it was not."""
HOPELESS_SECONDS = 10.0
"""How long workers that are connecting to each other are left to it after one of them was lost."""
IMPORT_SECONDS = 60.0
"""How long a worker may take from its start until it begins to look for the others: it imports its framework."""
_SLACK_SECONDS = 0.5
_NEVER, _LONG_AGO = float("inf"), float("-inf")


class Connections:
    """What the agents are told of their workers' connections. `leases`: on the agents, by their nodes."""

    def __init__(self, world: Workers, leases: Mapping[str, Lease], log: RunLog, *, gloo_timeout: float) -> None:
        self._world = world
        self._leases = leases
        self._log = log
        self._gloo_timeout = gloo_timeout
        self._warned = False

    def share_address(self, node: str) -> None:
        """Let every agent know which addresses are nodes of this run, with that of another node."""
        with contextlib.suppress(OSError):
            self._world.addresses[node] = socket.gethostbyname(node)
        for lease in self._leases.values():
            lease.channel.send({"type": "mesh", "addresses": sorted(self._world.addresses.values())})

    def disconnect(self, older_than: float) -> None:
        """Have all agents break connections that are at least so many seconds old."""
        for lease in self._leases.values():
            if lease.ready:
                lease.channel.send({"type": "disconnect", "older_than": older_than})

    def disconnected(self, node: str, error: str) -> None:
        """An agent has broken them; the log says, once, where it may not."""
        if error and not self._warned:
            self._warned = True
            what = f"node {node} may not break its workers' connections ({error})"
            self._log.note(f"{what}: after a loss, they notice it {self._gloo_timeout:.0f} s later")


class Rendezvous:
    """Decides when connections are broken, and when Horovod is restarted. Pure; all times are monotonic seconds.

    Args:
        disconnect: breaks those connections between workers that are at least that many seconds old.
        longest_step: how long workers that were connected when one of them was lost may take until they begin to
            connect again.
    """

    def __init__(self, world: Workers, disconnect: Callable[[float], None], *, longest_step: float) -> None:
        self._world = world
        self._longest_step = longest_step
        self._disconnect = disconnect
        self._lost_at = _NEVER
        """The last loss after which they have not met yet."""
        self._patience = 0.0
        self._woken_at = _LONG_AGO
        self._woken_again = False
        self._connecting_since = _NEVER
        self._parted = False

    def lost(self, *, now: float) -> None:
        """Have the others notice a loss at once; only once for all that follows from it."""
        self._patience = self._longest_step if self._world.disturbed(now=now) else HOPELESS_SECONDS
        self._lost_at = now
        if now - self._woken_at >= WAKE_SECONDS:
            self._woken_at = now
            self._woken_again = False
            self._disconnect(NEW_SECONDS)

    def over(self) -> None:
        """Note that they have met, or were started again."""
        self._lost_at = _NEVER

    def help(self, *, now: float) -> None:
        """Break also what was new at the loss: the workers had just met, and some would not notice it otherwise. And,
        once, what is left between workers of which one ended with 0: Horovod notices that only when they have."""
        if not self._woken_again and self._lost_at <= now and now - self._woken_at >= AGAIN_SECONDS:
            self._woken_again = True
            self._disconnect(now - self._woken_at - _SLACK_SECONDS)
        if not self._parted and self._world.waits_for_one_that_ended(now=now):
            self._parted = True
            self._disconnect(NEW_SECONDS)

    def is_hopeless(self, *, now: float) -> bool:
        """Whether the workers cannot find each other any more; true once for each loss. Called in every round.

        Workers that lost one of them before all were connected wait for it until Gloo's timeout, and then die; they are
        started again at once instead. So are those that are left when all that knew what was trained have ended.
        """
        if not self._world.living():
            return False
        self._connecting_since = min(self._connecting_since, now) if self._world.all_connect(now=now) else _NEVER
        if self._world.has_forgotten():
            until = self._lost_at + CONSEQUENCE_SECONDS
        else:
            # One that starts may yet meet the others.
            meeting = self._world.may_meet_until(starting=IMPORT_SECONDS, meeting=HOPELESS_SECONDS)
            until = max(self._lost_at + self._patience, meeting)
        hopeless = self._lost_at <= now and now >= min(until, self._connecting_since + HOPELESS_SECONDS)
        if hopeless:
            self.over()
        return hopeless
