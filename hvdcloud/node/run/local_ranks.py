"""The ranks of this node, as its agent has them: which there are, and how they are ended, once."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable

from hvdcloud.node import processes
from hvdcloud.node.channel import Caller, Listener, Mailbox

_LATE_SECONDS = 1.0
"""How long after its time a rank may still say that its command was killed."""


class Peer(Caller):
    """One connection on the agent's socket: a rank, `flush` or `leave`."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.rank: int | None = None
        self.pid: int | None = None
        self.child: int | None = None
        self.ended = False


class LocalRanks:
    """The ranks among the peers of an agent.

    Args:
        peers: those that are connected.
        mailbox: has the agent's own thread do something.
        say_quiet: called once when no rank runs any more that was told to end.
    """

    def __init__(self, run: str, peers: Listener[Peer], mailbox: Mailbox, *, say_quiet: Callable[[], None]) -> None:
        self._run = run
        self._peers = peers
        self._mailbox = mailbox
        self._say_quiet = say_quiet
        self._killed_at: float | None = None
        """When those that were told to end are killed, in monotonic seconds; None: they were not told."""
        self._quiet = threading.Event()
        self.orderly = False
        """The supervisor has told them to end, and hears what they still say."""

    @property
    def told_to_end(self) -> bool:
        """No other rank starts."""
        return self._killed_at is not None

    @property
    def quiet(self) -> bool:
        """All ranks have ended that were told to."""
        return self._quiet.is_set()

    @property
    def running(self) -> bool:
        """Whether any has not ended."""
        return any(peer.rank is not None and not peer.ended for peer in self._peers.callers)

    def children(self) -> dict[int, int]:
        """The process that each rank has started and that has not ended."""
        there = (peer for peer in self._peers.callers if not peer.ended)
        return {peer.rank: peer.child for peer in there if peer.rank is not None and peer.child is not None}

    def terminate(self, seconds: float) -> None:
        """Have every rank end, and kill what still runs `seconds` later; once."""
        if self._killed_at is None:
            self._killed_at = time.monotonic() + seconds
            for peer in self._peers.callers:
                if peer.rank is not None:
                    peer.channel.send({"type": "terminate", "seconds": seconds})
            self.check_quiet(time.monotonic())

    def check_quiet(self, now: float) -> None:
        """Say once that no rank runs any more. Each kills what is late; one that does not is not waited for."""
        if self._killed_at is None or self._quiet.is_set():
            return
        if not self.running or now > self._killed_at + _LATE_SECONDS:
            self._quiet.set()
            self._say_quiet()

    def end(self) -> None:
        """End every process of the run on this node. Blocks, in a thread."""
        self._mailbox.post(lambda: self.terminate(processes.GRACE_SECONDS))
        self._quiet.wait()
        self._mailbox.post(self._let_go)
        if self.orderly:
            # The launcher ends with its last rank, and passes on what they have said.
            processes.wait_gone(processes.find(self._run), seconds=processes.GRACE_SECONDS)
        processes.reap(self._run)

    def _let_go(self) -> None:
        """Hang up on the ranks that have ended their commands and wait for the others."""
        for peer in [peer for peer in self._peers.callers if peer.ended]:
            self._peers.forget(peer)
            peer.connection.close()

    def begin_again(self) -> None:
        """Let ranks start again."""
        self._killed_at = None
        self._quiet.clear()
