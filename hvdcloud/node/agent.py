"""`agent`: one per node while a run lasts: keeps its checkpoints, and ends its ranks when nobody else does.

The supervisor on the head starts it over ssh and both hold a lease: JSON lines each way, a heartbeat every second. If
the lease breaks (the head is gone) or falls silent (the head is frozen), the agent does what the supervisor would have
asked for: it ends every process of the run on its node, uploads what is left, and goes.

Messages from the supervisor: hello {silence}, beat, finish. To it: ready, beat, rank {rank, pid}, ended {record},
reaped {left}, finished {checkpoints}.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.node import paths, processes, state
from hvdcloud.node.files import Lock, lock_holder
from hvdcloud.node.keeper import Keeper, Report
from hvdcloud.node.private import forget
from hvdcloud.node.sampler import Sampler
from hvdcloud.node.spec import Spec
from hvdcloud.node.wire import BEAT_SECONDS, Channel

SILENCE_SECONDS = 30.0
"""How long the supervisor may be silent, until it says itself how long."""
_STALL_SECONDS = 3.0
"""A pause of our own loop that means that we were frozen ourselves."""
_LAST_WORDS_SECONDS = 2.0
KILLED = 128 + signal.SIGKILL


class _Peer:
    """One connection on the agent's socket: a rank, or `flush`."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.channel = Channel(read_fd=connection.fileno(), write_fd=connection.fileno())
        self.rank: int | None = None
        self.child: int | None = None
        self.ended = False


class Agent:
    """The agent of one run on this node.

    Args:
        spec: of the run.
        lease: the supervisor.
    """

    def __init__(self, spec: Spec, lease: Channel) -> None:
        self._spec = spec
        self._lease = lease
        self._keeper = Keeper(spec)
        self._sampler = Sampler(spec, self._keeper)
        self._selector = selectors.DefaultSelector()
        self._listener = self._listen()
        self._peers: set[_Peer] = set()
        self._records: dict[int, dict[str, Any]] = {}
        self._silence = SILENCE_SECONDS
        self._heard = time.monotonic()
        self._ending = False
        self._orphaned = ""
        self._finished: Report | None = None
        self._posted: collections.deque[Callable[[], None]] = collections.deque()
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def run(self) -> None:
        """Work until the run has ended on this node and everything is said."""
        self._selector.register(self._lease.read_fd, selectors.EVENT_READ, self._hear)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._wake)
        signal.signal(signal.SIGTERM, lambda *_: self._post(lambda: self._end("the agent was asked to end")))
        self._keeper.start()
        self._sampler.start()
        self._lease.send({"type": "ready", "node": self._spec.name, "pid": os.getpid()})
        beat_at = time.monotonic() + BEAT_SECONDS
        turned = time.monotonic()
        while self._finished is None:
            self._turn(max(0.0, beat_at - time.monotonic()))
            now = time.monotonic()
            if now - turned > BEAT_SECONDS + _STALL_SECONDS:
                # We were frozen, not the supervisor: what it said meanwhile may not have been delivered yet.
                self._heard = max(self._heard, now - self._silence + _STALL_SECONDS)
            turned = now
            if now >= beat_at:
                self._lease.beat()
                beat_at = now + BEAT_SECONDS
            if not self._ending and now - self._heard > self._silence:
                self._end(f"no heartbeat from the head for {self._silence:.0f} s")
        self._say_goodbye(self._finished)

    def _turn(self, seconds: float) -> None:
        for key, _ in self._selector.select(seconds):
            # An earlier event of this round may have closed this one's descriptor.
            if self._selector.get_map().get(key.fd) is key:
                key.data()

    def _listen(self) -> socket.socket:
        path = paths.agent_socket(self._spec.run)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(str(path))
        listener.listen(256)
        return listener

    def _post(self, call: Callable[[], None]) -> None:
        """Have something done by the main loop; from any thread or signal handler."""
        self._posted.append(call)
        # A full pipe wakes the loop just as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b"!")

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_reader, 4096)
        while self._posted:
            self._posted.popleft()()

    def _hear(self) -> None:
        for message in self._lease.receive():
            self._heard = time.monotonic()
            if message.get("type") == "hello":
                self._silence = float(message["silence"])
            elif message.get("type") == "finish":
                self._end("")
        if self._lease.closed:
            self._selector.unregister(self._lease.read_fd)
            self._end("the connection to the head is gone")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        peer = _Peer(connection)
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._hear_peer(peer))

    def _hear_peer(self, peer: _Peer) -> None:
        for message in peer.channel.receive():
            kind = message.get("type")
            if kind == "rank" and not self._ending:
                peer.rank = int(message["rank"])
                peer.channel.send({"type": "go"})
                self._lease.send({"type": "rank", "rank": peer.rank, "pid": message.get("pid")})
            elif kind == "started":
                peer.child = int(message["child"])
            elif kind == "ended":
                peer.ended = True
                self._record({key: message[key] for key in ("rank", "exit_code", "signal", "ended")})
            elif kind == "flush":
                threading.Thread(target=self._flush_for, args=(peer,), daemon=True).start()
        if not peer.channel.closed and not (self._ending and peer.rank is None):
            return
        self._drop(peer)
        if peer.rank is not None and not peer.ended:
            # The rank itself was killed; what it started is not left behind.
            self._record({"rank": peer.rank, "exit_code": KILLED, "signal": int(signal.SIGKILL), "ended": time.time()})
            if peer.child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(peer.child, signal.SIGKILL)

    def _drop(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.discard(peer)
            self._selector.unregister(peer.connection)
            peer.connection.close()

    def _record(self, record: dict[str, Any]) -> None:
        record["node"] = self._spec.name
        self._records[record["rank"]] = record
        self._lease.send({"type": "ended", "record": record, "reaped": self._ending})

    def _flush_for(self, peer: _Peer) -> None:
        report = self._keeper.flush_now()
        self._post(lambda: peer.channel.send({"type": "flushed", "checkpoints": report.as_dict()}))

    def _end(self, orphaned: str) -> None:
        """End the run on this node; once.

        Args:
            orphaned: why, if it is not the supervisor that wants it.
        """
        if self._ending:
            return
        self._ending = True
        self._orphaned = orphaned
        threading.Thread(target=self._finish, name="end", daemon=True).start()

    def _finish(self) -> None:
        left = processes.reap(self._spec.run)
        self._post(lambda: self._lease.send({"type": "reaped", "left": left}))
        # No rank that the launcher still starts gets past this.
        forget(self._spec.run, keep_credentials=True)
        report = self._keeper.finish()
        self._sampler.finish(upload=report.complete)
        forget(self._spec.run, keep_credentials=not report.complete)
        self._post(lambda: self._set_finished(report))

    def _set_finished(self, report: Report) -> None:
        self._finished = report

    def _say_goodbye(self, report: Report) -> None:
        self._turn(0.0)
        self._lease.send({"type": "finished", "checkpoints": report.as_dict(), "orphaned": self._orphaned})
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while self._lease.blocked and not self._lease.closed and time.monotonic() < deadline:
            select.select([], [self._lease.write_fd], [], deadline - time.monotonic())
            self._lease.flush()
        if self._orphaned and self._spec.node == 0:
            self._testify(report)

    def _testify(self, report: Report) -> None:
        """On the head, and the supervisor is dead: say how the run ended, as far as this node knows."""
        if state.supervised(self._spec.run) is not None:
            return
        current = state.read(self._spec.run)
        if not current.pop("supervisor_dead", False):
            return
        known = {record["rank"]: record for record in current["ranks"]} | self._records
        current |= {
            "ended": time.time(),
            "ranks": [known[rank] for rank in sorted(known)],
            # The other nodes' agents finish by themselves and were not heard.
            "checkpoints": {**report.as_dict(), "complete": report.complete and len(current["nodes"]) == 1},
        }
        state.write(current)


def main(run: str) -> int:
    """Be the agent of a run; standard input and output are the lease.

    Raises:
        UsageError: the run was not prepared here.
        NodeError: another agent of this run cannot be ended.
    """
    # sshd has made a session for us; a local supervisor has not, and its end must not be ours.
    with contextlib.suppress(PermissionError):
        os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spec = Spec.load(run)
    lock = _take_over(run)
    _redirect_errors(run)
    lease = Channel(read_fd=sys.stdin.fileno(), write_fd=sys.stdout.fileno())
    try:
        Agent(spec, lease).run()
    finally:
        lock.release()
    # A thread that hangs in a dead bucket must not keep the process.
    os._exit(0)


def _redirect_errors(run: str) -> None:
    """Standard error goes to agent.err: the ssh connection that it came with may be gone when there is a need."""
    try:
        descriptor = os.open(paths.run_dir(run) / "agent.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        # A full disk; the lease still carries what matters.
        return
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _take_over(run: str) -> Lock:
    """The run's one agent on this node: us. An earlier one has lost its supervisor and is ended."""
    lock = Lock(paths.agent_lock(run))
    deadline = time.monotonic() + processes.KILL_SECONDS
    while not lock.acquire({"pid": os.getpid()}):
        holder = lock_holder(lock.path)
        pid = int((holder or {}).get("pid", 0))
        if pid > 1:
            processes.send([pid], signal.SIGKILL)
            processes.wait_gone([pid], seconds=deadline - time.monotonic())
        if time.monotonic() >= deadline:
            raise NodeError(f"another agent of run {run} does not end", hint="hvdcloud down --force")
    return lock


def ask_to_flush(run: str, *, seconds: float) -> Report | None:
    """Have a live agent upload what it can now; None if there is none.

    Raises:
        NodeError: it did not answer in time.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with connection:
        try:
            connection.connect(str(paths.agent_socket(run)))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        channel = Channel(read_fd=connection.fileno(), write_fd=connection.fileno())
        channel.send({"type": "flush"})
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            select.select([connection], [], [], left)
            for message in channel.receive():
                if message.get("type") == "flushed":
                    return Report(**message["checkpoints"])
            if channel.closed:
                return None
    raise NodeError(f"the agent of run {run} did not upload its checkpoints in time", hint="hvdcloud pull tries again")


def finish_run(run: str) -> Report:
    """Upload what is left of a run that has no agent on this node.

    Raises:
        HvdcloudError: the run was not prepared here.
    """
    spec = Spec.load(run)
    try:
        report = Keeper(spec).finish()
    except OSError as error:
        raise HvdcloudError(f"run {run}: {error}", hint="hvdcloud pull tries again") from error
    forget(run, keep_credentials=not report.complete)
    return report
