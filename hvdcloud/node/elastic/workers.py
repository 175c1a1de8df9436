"""The workers of an elastic run, and whether they have found each other. Pure: no clock, no network."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hvdcloud.node.run.outcome import Worker

FRESH_SECONDS = 2.5
"""How old the agents' last report of their workers' connections may be."""
ALONE_SECONDS = 8.0
"""A worker that is alone has no connections to tell by: after a loss it is given this long."""
FULLEST = 2
"""How often Horovod 0.28.1 connects its ranks over Gloo; other versions do once. What is more is NCCL's: how many of
those there are depends on who is next to whom in its rings, and on what was reduced so far."""
PARTING_SECONDS = 10.0
"""How far apart the workers of a job that has ended may end before those that are left are taken to wait for others."""


@dataclass
class Process(Worker):
    """A worker that was started, and what is known of its connections."""

    began: float = float("-inf")
    """Monotonic seconds."""
    peers: Mapping[str, int] = field(default_factory=dict)
    """How many connections it has to each node, by address."""
    listens_since: float | None = None
    """When it was first seen to have been told whom it has to meet, in monotonic seconds; None: it still starts."""
    reported_at: float = float("-inf")
    has_met: bool = False
    """It has been connected to all the others: from then on it has what was trained in its memory."""

    @property
    def lives(self) -> bool:
        return self.ended is None and not self.lost


@dataclass
class Workers:
    """Every worker since Horovod was last started, by its node and process id."""

    processes: dict[tuple[str, int], Process] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    """Of each node."""
    pace: float = 1.0
    """Seconds between two heartbeats, with which agents report: FRESH_SECONDS and ALONE_SECONDS are for one second."""
    changed_at: float = float("-inf")
    """When a node was last listed or lost, in monotonic seconds: what was seen before that does not count."""
    formed: bool = False
    """Whether all workers are connected to each other, as the agents have just reported."""
    has_formed: bool = False
    """Whether they have been since then: a frozen agent reports nothing long before its node is given up, and a worker
    that was killed has closed its connections before its end is reported."""
    fullest: int = 1
    """The most connections that were seen between two nodes, as a multiple of Gloo's for one set of ranks, up to
    FULLEST. With fewer than there once were, they may wait for one that is dead."""
    doubtful: bool = False
    """Whether something changed before they were: one that is left alone then may wait for one that is dead."""

    def living(self) -> list[Process]:
        """The workers that run, as far as is known."""
        return [process for process in self.processes.values() if process.lives]

    def nodes(self) -> set[str]:
        """The nodes where workers run."""
        return {process.node for process in self.living()}

    def nodes_served(self) -> set[str]:
        """The nodes where workers run or have done their work, so that Horovod has none to start there."""
        return {process.node for process in self.processes.values() if process.lives or process.completed}

    def any_succeeded(self) -> bool:
        """Whether a worker has ended with 0."""
        return any(process.succeeded for process in self.processes.values())

    def any_completed(self) -> bool:
        """Whether a worker has done its work: one that was told to end may end with 0 too."""
        return any(process.completed for process in self.processes.values())

    def waits_for_one_that_ended(self, *, now: float) -> bool:
        """Whether workers still run long after one of them ended with 0: they may wait for it."""
        ends = [process.ended.at for process in self.processes.values() if process.ended and process.succeeded]
        return bool(ends) and bool(self.living()) and now - min(ends) > PARTING_SECONDS

    def has_forgotten(self) -> bool:
        """Whether all workers that knew what was trained have ended, and others are left."""
        living = self.living()
        knew = any(process.has_met for process in self.processes.values())
        return knew and bool(living) and not any(process.has_met for process in living)

    def forget(self, node: str) -> None:
        """Note that a node is lost, and its workers with it."""
        for process in self.living():
            if process.node == node:
                process.lost = True

    def connected(
        self, node: str, workers: Mapping[str, Mapping[str, int]], *, listening: Collection[str], now: float
    ) -> None:
        """Note what a node's agent saw: connections by address, by process id, and the processes that listen."""
        for pid, addresses in workers.items():
            if process := self.processes.get((node, int(pid))):
                process.peers = dict(addresses)
                process.reported_at = now
                if pid in listening and process.listens_since is None:
                    process.listens_since = now

    def disturbed(self, *, now: float) -> bool:
        """Note a change; returns whether all workers had been connected to each other before."""
        was_formed, self.formed, self.has_formed = self.has_formed, False, False
        self.doubtful = self.doubtful or (bool(self.processes) and not was_formed)
        self.changed_at = now
        return was_formed

    def begin(self, *, now: float) -> None:
        """Start over: Horovod is started again, with new workers."""
        self.processes.clear()
        self.formed = self.has_formed = self.doubtful = False
        self.changed_at = now

    def all_connect(self, *, now: float) -> bool:
        """Whether every worker has connections to others since the last change: none of them is still in a step."""
        seen_after = max(now - FRESH_SECONDS * self.pace, self.changed_at + FRESH_SECONDS * self.pace)
        others = {node: {address for name, address in self.addresses.items() if name != node} for node in self.nodes()}
        return len(others) > 1 and all(
            process.reported_at >= seen_after and not others[process.node].isdisjoint(process.peers)
            for process in self.living()
        )

    def may_meet_until(self, *, starting: float, meeting: float) -> float:
        """Until when workers that have not met the others yet may still do so, in monotonic seconds.

        Args:
            starting: seconds that one may take from its start until it knows whom it has to meet.
            meeting: and then until it has met them. If one of those is lost meanwhile, it never does.
        """
        limits = (
            process.began + starting if process.listens_since is None else process.listens_since + meeting
            for process in self.living()
            if not process.has_met
        )
        return max(limits, default=float("-inf"))

    def check_formed(self, wanted: Collection[str], *, now: float) -> bool:
        """Whether every worker is connected to the nodes of all the others, which are those wanted, and to no more;
        remembered in `formed` and `has_formed`."""
        living = self.living()
        nodes = self.nodes()
        settles = FRESH_SECONDS if len(nodes) > 1 else ALONE_SECONDS
        seen_after = max(now - FRESH_SECONDS * self.pace, self.changed_at + settles * self.pace)
        self.formed = (
            nodes == set(wanted)
            and bool(living)
            and (len(nodes) > 1 or not self.doubtful)
            and all(process.reported_at >= seen_after for process in living)
            and self._have_met(nodes)
        )
        if self.formed:
            self.has_formed, self.doubtful = True, False
            for process in self.processes.values():
                process.has_met = process.has_met or process.lives
                process.got_over = process.got_over or not process.lives
        return self.formed

    def _have_met(self, nodes: Collection[str]) -> bool:
        """Whether the workers of these nodes are connected as they once were, and to no other node."""
        ranks = {node: sum(1 for process in self.living() if process.node == node) for node in nodes}
        shares = []
        for node in nodes:
            for other in self.addresses.keys() - {node}:
                between = sum(
                    process.peers.get(self.addresses[other], 0) for process in self.living() if process.node == node
                )
                if other in ranks:
                    # Gloo connects every two ranks, and then every two of the same local rank (gloo_context.cc).
                    here, there = ranks[node], ranks[other]
                    shares.append(between / (here * there + min(here, there)))
                elif between:
                    return False
        lowest = min(shares, default=float(self.fullest))
        # A pair may have passing connections too, such as those to the rendezvous; not every pair.
        self.fullest = min(max(self.fullest, int(lowest)), FULLEST)
        return lowest >= self.fullest
