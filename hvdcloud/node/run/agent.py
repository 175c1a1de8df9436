"""`agent`: one per node while a run lasts: uploads its checkpoints, and ends its ranks if nothing else does.

The supervisor on the head starts it over ssh and both hold a lease: JSON lines each way, a heartbeat every second. If
the lease breaks (the head is gone) or falls silent (the head is frozen), the agent does what the supervisor would have
asked for: it ends every process of the run on its node, uploads what is left, and goes.

Messages from the supervisor: hello {silence, beat}, beat, terminate {seconds}, finish; of ranks that are watched
(run/stuck.py) stacks {native}; in an elastic run also reset, gather. To it: data (NodeData of runs/state.py), waits
{ranks} (RankWaits), left_out {names}, ready, beat, rank {rank, pid, host}, ended {record, pid, reaped, ago}, stacks
{ranks, used, written, at}, reset {error}, gather {error}, leaving {why}, saved and ending {why, seconds}
(uploads/drain.py), quiet, finished {checkpoints}. Of `ended`, `reaped` means that the agent was ending the ranks by
then, and `ago` is the number of seconds since the rank's end.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hvdcloud.node import notify, paths
from hvdcloud.node.channel import BEAT_SECONDS, Channel, Listener, Mailbox, turn
from hvdcloud.node.monitor.sampler import Sampler
from hvdcloud.node.monitor.stacks import Looker
from hvdcloud.node.records import active, state
from hvdcloud.node.records.secrets_file import forget
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.data import wait_for_data
from hvdcloud.node.run.local_ranks import LocalRanks, Peer
from hvdcloud.node.run.probe import worker_problem
from hvdcloud.node.uploads import drain
from hvdcloud.node.uploads.loop import UploadLoop
from hvdcloud.runs.reports import RankRecord, RankWaits, UploadReport

SILENCE_SECONDS = 30.0
"""How long the supervisor may be silent, until it says itself how long."""
_STALL_SECONDS = 3.0
"""A pause of our own loop that means that we were frozen ourselves."""
_LAST_WORDS_SECONDS = 2.0


class Agent:
    """The agent of one run on this node. `lease`: the supervisor. `probe`: try first what a worker needs."""

    def __init__(self, spec: Spec, lease: Channel, *, probe: bool = False) -> None:
        self._spec = spec
        self._lease = lease
        self._upload_loop = UploadLoop(spec, say_left_out=lambda names: self._say({"names": names}, "left_out"))
        self._sampler = Sampler(spec, self._upload_loop, say_waits=self._say_waits)
        self._looker = Looker(spec)
        self._selector = selectors.DefaultSelector()
        self._socket = Listener(paths.agent_socket(spec.run), self._selector, kind=Peer, hear=self._hear_peer)
        self._records: dict[int, RankRecord] = {}
        self._silence, self._beat = SILENCE_SECONDS, BEAT_SECONDS
        self._heard = time.monotonic()
        self._probe = probe
        self._resetting = False
        self._ending = False
        self._orphaned = ""
        self._saves_until: float | None = None
        """Until when a node that leaves waits for its ranks to save."""
        self._finished: UploadReport | None = None
        self._drain: drain.Drain | None = None
        self._askers: list[Peer] = []
        self._told_to_finish = threading.Event()
        self._told_to_end = threading.Event()
        self._mailbox = Mailbox()
        quiet = {"type": "quiet"}
        self._ranks = LocalRanks(spec.run, self._socket, self._mailbox, say_quiet=lambda: lease.send(quiet))

    def run(self) -> None:
        """Work until the run has ended on this node and everything is said."""
        self._selector.register(self._lease.read_fd, selectors.EVENT_READ, self._hear)
        self._selector.register(self._mailbox, selectors.EVENT_READ, self._mailbox.deliver)
        signal.signal(signal.SIGTERM, lambda *_: self._mailbox.post(lambda: self._end("the agent was asked to end")))
        self._upload_loop.start()
        self._sampler.start()
        drain.watch(lambda: self._mailbox.post(lambda: self.leave(drain.PREEMPTED)))
        if self._probe or self._spec.data is not None:
            threading.Thread(target=self._get_ready, name="ready", daemon=True).start()
        else:
            self._say_ready()
        beaten = turned = time.monotonic()
        while self._finished is None:
            turn(self._selector, max(0.0, beaten + self._beat - time.monotonic()))
            now = time.monotonic()
            if now - turned > self._beat + _STALL_SECONDS:
                # We were frozen, not the supervisor: what it said meanwhile may not have been delivered yet.
                self._heard = max(self._heard, now - self._silence + _STALL_SECONDS)
            turned = now
            if now >= beaten + self._beat:
                self._lease.beat()
                beaten = now
            self._ranks.check_quiet(now)
            if not self._ending and now - self._heard > self._silence:
                self._end(f"no heartbeat from the head for {self._silence:.0f} s")
        self._say_goodbye(self._finished)

    def _say_ready(self) -> None:
        self._lease.send({"type": "ready", "node": self._spec.name, "pid": os.getpid()})

    def _get_ready(self) -> None:
        """Wait for the data, and try what a worker needs."""
        problem = ""
        if self._spec.data is not None:
            problem = wait_for_data(
                self._spec.data, say=lambda data: self._say(data.to_json(), "data"), ending=self._told_to_end
            )
        if self._probe and not problem and not self._told_to_end.is_set():
            problem = worker_problem(self._spec)
        if self._told_to_end.is_set():
            return
        if problem:
            self._mailbox.post(lambda: self._lease.send({"error": problem}))
            self._mailbox.post(lambda: self._end(problem))
        else:
            self._mailbox.post(self._say_ready)

    def _say_waits(self, waits: Sequence[RankWaits]) -> None:
        self._say({"ranks": [each.to_json() for each in waits]}, "waits")

    def _hear(self) -> None:
        for message in self._lease.receive():
            self._heard = time.monotonic()
            kind = message.get("type")
            if kind == "hello":
                self._silence = float(message["silence"])
                self._beat = float(message.get("beat", BEAT_SECONDS))
            elif kind == "reset" and not self._ending:
                self._resetting = True
                threading.Thread(target=self._reset, name="reset", daemon=True).start()
            elif kind == "gather" and not self._ending:
                threading.Thread(target=self._gather, name="gather", daemon=True).start()
            elif kind == "stacks":
                self._looker.look(
                    self._ranks.children(),
                    native=bool(message["native"]),
                    tell=lambda said: self._say(said, "stacks"),
                )
            elif kind == "terminate":
                self._ranks.orderly = True
                self._ranks.terminate(float(message["seconds"]))
            elif kind == "finish":
                self._told_to_finish.set()
                self._end("")
        if self._lease.closed:
            self._told_to_finish.set()
            self._selector.unregister(self._lease.read_fd)
            self._end("the connection to the head is gone")

    def _say(self, said: dict[str, Any], kind: str) -> None:
        """From any thread, to the supervisor."""
        self._mailbox.post(lambda: self._lease.send({"type": kind, **said}))

    def _hear_peer(self, peer: Peer) -> None:
        for message in peer.channel.receive():
            kind = message.get("type")
            if kind == "rank" and not (self._ending or self._resetting or self._ranks.told_to_end):
                peer.rank, peer.pid = int(message["rank"]), int(message["pid"])
                peer.channel.send({"type": "go"})
                self._lease.send({"type": "rank", "rank": peer.rank, "pid": peer.pid, "host": message.get("host")})
            elif kind == "started":
                peer.child = int(message["child"])
            elif kind == "ended":
                peer.ended = True
                self._record(peer, RankRecord.from_json(message))
            elif kind == "flush":
                threading.Thread(target=self._flush_for, args=(peer,), daemon=True).start()
            elif kind == "stacks":
                self._looker.look(
                    self._ranks.children(),
                    native=True,
                    tell=lambda said: self._answer(peer, {"type": "stacks", **said}),
                )
            elif kind == "leave" and not self._ending:
                self._askers.append(peer)
                self.leave(str(message["why"]), ending=True)
        if not peer.channel.closed and not (self._ending and peer.rank is None):
            return
        self._socket.forget(peer)
        peer.connection.close()
        if peer.rank is not None and not peer.ended:
            # The rank itself was killed; what it started is not left behind.
            killed = int(signal.SIGKILL)
            end = RankRecord(rank=peer.rank, exit_code=128 + killed, signal=killed, terminated=False, ended=time.time())
            self._record(peer, end)
            if peer.child is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(peer.child, signal.SIGKILL)

    def _record(self, peer: Peer, record: RankRecord) -> None:
        record = replace(record, node=self._spec.name)
        self._records[record.rank] = record
        reaped = self._ending or self._resetting
        now = time.time()
        ago = max(0.0, now - (record.ended or now))
        self._lease.send({"type": "ended", "record": record.to_json(), "pid": peer.pid, "reaped": reaped, "ago": ago})

    def _flush_for(self, peer: Peer) -> None:
        report = self._upload_loop.flush_now()
        self._answer(peer, {"type": "flushed", "checkpoints": report.to_json()})

    def _answer(self, peer: Peer, said: dict[str, Any]) -> None:
        self._mailbox.post(lambda: peer.channel.send(said))

    def _reset(self) -> None:
        """End the ranks of this node, and upload: Horovod will be started again (restart.py)."""
        self._ranks.end()
        error = "; ".join(self._upload_loop.flush_now().errors)
        self._say({"error": error}, "reset")

    def _gather(self) -> None:
        """Get the newest checkpoints of all nodes; then ranks may start again."""
        error = self._upload_loop.gather()

        def report() -> None:
            self._resetting = False
            self._ranks.begin_again()
            self._lease.send({"type": "gather", "error": error})

        self._mailbox.post(report)

    def leave(self, why: str, *, ending: bool = False) -> None:
        """This node is about to go: say so, and upload what there is, and what is still written, at once.

        Args:
            why: completes "it is being …".
            ending: its processes go too: the run ends here when the checkpoints that are being written have arrived.
        """
        if self._drain is None and not self._ending:
            self._drain = drain.Drain(why)
            self._lease.send({"type": "leaving", "why": why})
            self._upload_loop.hurry(lambda report: self._mailbox.post(lambda: self._note_saved(report)))
        if self._drain is not None:
            self._drain.ending |= ending
            # An elastic run continues without this node, unless it is the head. The supervisor has all ranks save, and
            # then knows why they end.
            if self._saves_until is None and (not self._spec.elastic or (ending and not self._spec.node)):
                seconds = min(self._spec.grace, self._drain.patience_left)
                self._saves_until = time.monotonic() + seconds
                self._lease.send({"type": "ending", "why": f"it is being {self._drain.why}", "seconds": seconds})

    def _note_saved(self, report: UploadReport) -> None:
        """End the run here, if this container ends and what was waited for has been saved."""
        if self._drain is None or not self._drain.ending or self._ending:
            return
        patient = self._drain.patience_left > 0
        if patient and (report.pending or report.errors):
            return
        if self._saves_until is not None and not self._ranks.quiet and time.monotonic() < self._saves_until:
            # What the ranks still save goes to the bucket too.
            return
        # In an elastic run Horovod takes the ranks away when the supervisor has struck the node off its list, which
        # it does with every node but the head.
        if not (patient and self._spec.elastic and self._spec.node and self._ranks.running):
            self._end(f"it is being {self._drain.why}")

    def _end(self, orphaned: str) -> None:
        """End the run on this node; once. `orphaned`: why, if it is not the supervisor that wants it."""
        if self._ending:
            return
        for peer in [peer for peer in self._socket.callers if peer.rank is not None]:
            # What a rank has reported before this is not our doing, however late we read it.
            self._hear_peer(peer)
        self._ending = True
        self._told_to_end.set()
        self._orphaned = orphaned
        if orphaned:
            self._lease.send({"type": "ending", "why": orphaned})
        threading.Thread(target=self._finish, name="end", daemon=True).start()

    def _finish(self) -> None:
        if self._drain is not None:
            # The supervisor ends the run as soon as it knows that we will; what other ranks do then is not a failure.
            self._told_to_finish.wait(_LAST_WORDS_SECONDS)
        self._ranks.end()
        # No rank that the launcher still starts gets past this.
        forget(self._spec.run)
        patience = {"patience": self._drain.patience_left} if self._drain is not None else {}
        report = self._upload_loop.finish(**patience)
        self._sampler.finish(upload=report.complete)
        self._mailbox.post(lambda: self._set_finished(report))

    def _set_finished(self, report: UploadReport) -> None:
        self._finished = report

    def _say_goodbye(self, report: UploadReport) -> None:
        turn(self._selector, 0.0)
        if self._drain is not None:
            saved = self._drain.says(report)
            self._lease.send({"type": "saved", **saved})
            # First, because the supervisor ends us when it has heard that we have finished.
            for peer in self._askers:
                if peer in self._socket.callers:
                    peer.channel.send({"type": "left", **saved})
        self._lease.send({"type": "finished", "checkpoints": report.to_json(), "orphaned": self._orphaned})
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        # The end of this node ends its sshd too: wait until the head has got the message and closed the connection.
        while (self._lease.blocked or self._drain) and not self._lease.closed and time.monotonic() < deadline:
            writing = [self._lease.write_fd] if self._lease.blocked else []
            select.select([self._lease.read_fd], writing, [], deadline - time.monotonic())
            self._lease.receive()
            self._lease.flush()
        if self._spec.node or not self._orphaned:
            return
        if state.record_orphaned_end(self._spec.run, ranks=self._records, report=report):
            notify.tell(self._spec.run)


def main(run: str, *, probe: bool = False) -> int:
    """Be the agent of a run; standard input and output are the lease.

    Args:
        probe: try what a worker needs before this node is ready.

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
    # An earlier one has lost its supervisor.
    lock = active.take_over(paths.agent_lock(run), what=f"another agent of run {run}")
    # Standard error goes to a file, since the ssh connection that it came with may be gone when there is a need. On a
    # full disk it does not; the lease still carries what matters.
    with contextlib.suppress(OSError), (paths.run_dir(run) / "agent.err").open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        Agent(spec, Channel(sys.stdin.fileno(), sys.stdout.fileno()), probe=probe).run()
    finally:
        lock.release()
    # Threads are daemons: one that hangs in a dead bucket does not keep the process.
    return 0
