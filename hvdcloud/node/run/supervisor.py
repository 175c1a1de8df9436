"""The supervisor of a run: one process on the head that starts it, watches it and ends it on every node.

It outlives the SSH connection that launched it. It holds a lease on an agent on every node, itself included; whatever
happens to either side ends the run there. It starts the launcher at once, beside the agents: a rank waits for its
agent. Where the run has data sets, it starts it when every agent says that its node has them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Sequence
from typing import Any

from hvdcloud.node import processes
from hvdcloud.node.channel import turn
from hvdcloud.node.records import state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.finish import announcements, left_out_note, not_uploaded
from hvdcloud.node.run.launcher import Launcher
from hvdcloud.node.run.lease import Lease, remote_agent
from hvdcloud.node.run.log import QUIET_SECONDS, RunLog
from hvdcloud.node.run.outcome import CONSEQUENCE_SECONDS, Loss, Outcome, Ranks, judge, may_be_a_consequence
from hvdcloud.node.run.recorder import Recorder
from hvdcloud.node.run.stuck import StuckWatch
from hvdcloud.node.uploads.drain import saved_note
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import NodeData, RankWaits, UploadReport, texts_of
from hvdcloud.runs.state import RunState

START_SECONDS = 60.0
"""How long an agent may take to start, over ssh, from a cold disk or beside everything else that starts then."""
FAILURE_SECONDS = 2.0
"""How long the launcher may take to end the other ranks when one has failed; then we do it."""
LAUNCHER_SECONDS = 10.0
"""How long the launcher may outlive its last rank."""
_MIN_SILENCE_BEATS = 3.0
_SILENCE_MARGIN = 4.0
_STALL_SECONDS = 3.0
_NOTICEABLE_SECONDS = 1.0
DRAIN_SECONDS = 1.0


def silence_limit(gloo_timeout: float, *, beat: float) -> float:
    """Seconds without a heartbeat after which a node is given up, so that the run has ended within the Gloo timeout.

    Args:
        beat: seconds between two heartbeats.
    """
    return max(_MIN_SILENCE_BEATS * beat, gloo_timeout / 2, gloo_timeout - _SILENCE_MARGIN)


class Supervisor:
    """One run, from its start to its end. `current`: the run's state so far; completed and written at every step."""

    def __init__(self, spec: Spec, current: RunState) -> None:
        self._spec = spec
        self._head = spec.names[0]
        self._state = current
        self._silence = silence_limit(spec.gloo_timeout, beat=spec.beat)
        self._log = RunLog(state.log_file(spec.run))
        self._recorder = Recorder(current, self._log)
        self._selector = selectors.DefaultSelector()
        self._leases: dict[str, Lease] = {}
        self._broke: dict[str, Loss] = {}
        self._lost: list[Loss] = []
        self._ranks = Ranks()
        self._launcher = Launcher(spec)
        self._launcher_end: int | None = None
        """Its exit code, if it had ended by itself when we asked for the end of the run."""
        self._stop = False
        self._stopped = False
        self._save_seconds = 0.0
        """How long ranks may take to end by themselves when the run does; only where somebody asks for the end."""
        self._grace = spec.grace
        self._ending = False
        self._trouble = ""
        self._trouble_is_loss = False
        self._hurry_at = float("inf")
        self._beat_at = 0.0
        self._turned = time.monotonic()
        self._waits_for_data = spec.data is not None
        self._began = time.monotonic()
        self._watch = StuckWatch(spec.stuck, self._ask, now=time.monotonic())

    def run(self) -> None:
        """Run to the end; never raises for what happens to the run."""
        wakeup = self._catch_signals()
        self._selector.register(wakeup, selectors.EVENT_READ, lambda: os.read(wakeup, 4096))
        self._begin()
        while not self._is_over():
            self._turn(self._spec.beat)
        self._finish()

    def _begin(self) -> None:
        """Start an agent on every node, and the launcher beside them."""
        # What takes longest first: a connection, then the launcher, beside which this node's agent has time to start.
        for node in self._spec.names[1:]:
            self._hold(node, self._agent_command(node))
        self._launch()
        self._hold(self._head, self._agent_command(self._head))

    def _launch(self) -> None:
        """Start the launcher, unless the nodes' data are waited for."""
        if self._waits_for_data:
            state.record_event(self._spec.run, "waiting for the nodes' data")
        else:
            self._start_launcher()

    def _agent_command(self, node: str, *, again: bool = False, probe: bool = False) -> list[str]:
        if node == self._head:
            return processes.own_program("agent", self._spec.run, *(["--probe"] if probe else []))
        return remote_agent(self._spec.run, node, again=again, probe=probe)

    def _catch_signals(self) -> int:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return reader

    def _on_stop(self, *_: object) -> None:
        self._stop = True

    def _hold(self, node: str, argv: list[str]) -> None:
        """Start an agent on a node, or a second one after the first was lost."""
        lease = Lease(node=node, argv=argv, silence=self._silence, beat=self._spec.beat)
        self._leases[node] = lease
        self._selector.register(lease.channel.read_fd, selectors.EVENT_READ, lambda: self._hear(lease))
        self._selector.register(lease.error_fd, selectors.EVENT_READ, lambda: self._hear_error(lease))

    def _start_launcher(self) -> None:
        try:
            self._launcher.start()
        except OSError as error:
            self._trouble = f"{self._spec.program} could not be started: {error.strerror}"
            return
        self._state.launched = self._state.launched or time.time()
        self._selector.register(self._launcher.output_fd, selectors.EVENT_READ, self._read_output)

    def _turn(self, seconds: float) -> None:
        """One round: wait for anything to happen, at most until `seconds` are over or a heartbeat is due."""
        now = time.monotonic()
        wait = min(seconds, self._beat_at - now, self._hurry_at - now)
        if self._log.holding:
            wait = min(wait, QUIET_SECONDS)
        turn(self._selector, max(0.0, wait))
        ready = bool(self._leases) and all(lease.ready for lease in self._leases.values())
        if ready and self._waits_for_data and not self._ending:
            self._waits_for_data = False
            self._state.data_seconds = round(time.monotonic() - self._began, 3)
            self._start_launcher()
        if not self._ending and (found := self._watch.turn(self._watched_nodes(), now=time.monotonic())) is not None:
            stuck, stacks = found
            state.write_stacks(self._spec.run, stacks)
            self._state.stuck, self._trouble = stuck, stuck.text
            self._save_seconds = self._grace
            state.record_event(self._spec.run, "stuck", detail=stuck.text)
        now = time.monotonic()
        self._watch.output(self._log.quiet(), now=now)
        self._launcher.poll()
        frozen_ourselves = now - self._turned > self._spec.beat + _STALL_SECONDS
        self._turned = now
        if now >= self._beat_at:
            self._beat_at = now + self._spec.beat
            self._recorder.write_changed()
            for lease in self._leases.values():
                if frozen_ourselves:
                    lease.heard = max(lease.heard, now - self._silence + _STALL_SECONDS)
                lease.channel.beat()
        for lease in list(self._leases.values()):
            starting = not lease.ready and lease.node not in self._broke
            limit = max(self._silence, START_SECONDS) if starting else self._silence
            if not lease.finished and now - lease.heard > limit:
                self._lose(lease, f"no heartbeat for {limit:.0f} s", silent=True)

    def _ask(self, node: str, message: dict[str, Any]) -> None:
        if (lease := self._leases.get(node)) is not None:
            lease.channel.send(message)

    def _watched_nodes(self) -> set[str]:
        """The nodes with ranks that have not ended; none until all have started."""
        started = self._launcher.runs and len(self._ranks.started) >= self._spec.np
        return self._ranks.nodes() if started else set()

    def _read_output(self) -> None:
        data = self._launcher.read()
        if data:
            self._watch.output(self._log.output(data), now=time.monotonic())
        elif data is not None:
            self._close_output()

    def _close_output(self) -> None:
        if self._launcher.output_open:
            self._selector.unregister(self._launcher.output_fd)
            self._launcher.close_output()

    def _hear_error(self, lease: Lease) -> None:
        if not lease.read_error():
            self._selector.unregister(lease.error_fd)

    def _hear(self, lease: Lease) -> None:
        for message in lease.channel.receive():
            lease.heard = time.monotonic()
            try:
                self._take(lease, str(message.get("type")), message)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
                # One node must not be able to end the others' run with a message that is none, or to fill their disk.
                if not lease.misunderstood:
                    self._log.note(f"node {lease.node} sent a message that cannot be used: {type(error).__name__}")
                lease.misunderstood = True
        if lease.channel.closed:
            self._selector.unregister(lease.channel.read_fd)
            if not lease.finished:
                self._lose(lease, "")

    def _take(self, lease: Lease, kind: str, message: dict[str, Any]) -> None:
        """Handle a message from an agent."""
        if kind == "ready":
            lease.ready = True
            if self._state.state == "starting" and all(each.ready for each in self._leases.values()):
                self._recorder.ready()
        elif kind == "rank":
            self._ranks.started[int(message["rank"])] = lease.node
            if len(self._ranks.started) >= self._spec.np:
                self._recorder.training()
        elif kind == "ended":
            self._ranks.note_end(message, now=time.monotonic())
        elif kind == "quiet":
            lease.quiet = True
        elif kind == "ending":
            self._save_seconds = float(message.get("seconds", 0.0))
            self._orphaned(lease, str(message["why"]))
        elif kind == "leaving":
            self._leaves(lease, str(message["why"]))
        elif kind == "saved":
            self._log.note(saved_note(lease.node, message))
        elif kind == "left_out":
            self._log.note(left_out_note(lease.node, texts_of(message["names"])))
        elif kind == "stacks":
            self._watch.heard(lease.node, message, now=time.monotonic())
        elif kind == "data":
            self._note_data(NodeData.from_json({**message, "node": lease.node}))
        elif kind == "waits":
            self._recorder.waits(lease.node, RankWaits.all_from_json(message["ranks"]))
        elif kind == "finished":
            lease.checkpoints = UploadReport.from_json(message["checkpoints"])
            if message.get("orphaned"):
                self._orphaned(lease, str(message["orphaned"]))
        elif "error" in message:
            lease.refusal = str(message["error"])

    def _note_data(self, data: NodeData) -> None:
        """Take how far a node's data sets are; one that cannot have them ends a run that waits for it."""
        self._recorder.node_data(data)
        if data.phase == "failed" and self._waits_for_data and not self._trouble:
            self._trouble = f"node {data.node}: {data.error}"

    def _leaves(self, lease: Lease, why: str) -> None:
        self._recorder.leaving(lease.node, why)

    def _orphaned(self, lease: Lease, why: str) -> None:
        """Note that an agent has ended the run on its node by itself; what that ended there is not the cause."""
        if not self._trouble:
            self._trouble = f"node {lease.node} ended its part of the run: {why}"
            self._trouble_is_loss = True

    def _lose(self, lease: Lease, why: str, *, silent: bool = False) -> None:
        """Handle a broken lease. If the node can be reached again, only the agent was lost: a new one ends the run.

        Args:
            silent: it has not been heard of for too long.
        """
        node = lease.node
        broke = Loss(node, why or lease.last_words() or "its connection broke", time.monotonic())
        worth_another = lease.ready or self._ending
        self._release(lease)
        if node not in self._broke and worth_another:
            self._broke[node] = broke
            if not self._trouble:
                self._trouble = f"the agent on node {node} was lost: {broke.why}"
                self._trouble_is_loss = True
            self._hold(node, self._agent_command(node, again=True))
            self._leases[node].finish()
            return
        self._lost.append(self._broke.get(node, broke))
        state.record_event(self._spec.run, "lost a node", detail=f"{node}: {self._lost[-1].why}")

    def _release(self, lease: Lease) -> None:
        for descriptor in (lease.channel.read_fd, lease.error_fd):
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
        lease.close()
        if self._leases.get(lease.node) is lease:
            del self._leases[lease.node]

    def _is_over(self) -> bool:
        """Whether the run has to end, for any reason."""
        if self._stop:
            self._stopped, self._save_seconds = True, self._grace
            return True
        if self._lost or self._trouble:
            return True
        if self._log.failure is not None:
            self._trouble = f"the log could not be written on node {self._head}: {self._log.failure.strerror}"
            return True
        now = time.monotonic()
        open_question = may_be_a_consequence(self._ranks.ended, np=self._spec.np, now=now)
        if self._launcher.code is not None:
            # A rank may be about to end with a code of its own, which says more than the launcher's.
            unexplained = self._launcher.code > 0 and bool(self._ranks.started) and not self._ranks.failed
            if not self._launcher.output_open and not open_question and not unexplained:
                return True
            self._hurry_at = min(self._hurry_at, now + max(DRAIN_SECONDS, CONSEQUENCE_SECONDS))
        elif self._ranks.failed:
            self._hurry_at = min(self._hurry_at, now + FAILURE_SECONDS)
        elif len(self._ranks.ended) >= self._spec.np:
            self._hurry_at = min(self._hurry_at, now + LAUNCHER_SECONDS)
        return now >= self._hurry_at

    def _finish(self) -> None:
        """End the run on every node, collect what is known, and write it down. How it ended is judged when every
        agent has finished, and has reported how its ranks ended, or was given up."""
        self._ending = True
        self._hurry_at = float("inf")
        self._launcher_end = self._launcher.code
        if self._launcher_end is None and self._spec.launcher != "horovod":
            # What torchrun says of an end that it did not cause is about itself.
            self._log.ignore_launcher()
        # What ends while the launcher still runs, ends because we ask for it.
        self._ranks.reaping = self._launcher_end is None
        self._state.state, self._state.training_until = "finishing", time.time()
        self._recorder.write()
        if self._save_seconds and self._launcher.runs:
            self._let_ranks_save(self._save_seconds)
        else:
            self._launcher.signal(signal.SIGTERM)
        for lease in self._leases.values():
            lease.finish()
        kill_at = time.monotonic() + processes.GRACE_SECONDS + 1.0
        checkpoints: dict[str, UploadReport] = {}
        while self._leases or self._launcher.runs:
            self._turn(self._spec.beat)
            for lease in list(self._leases.values()):
                if lease.finished:
                    checkpoints[lease.node] = lease.checkpoints or UploadReport()
                    self._release(lease)
            if time.monotonic() >= kill_at:
                self._launcher.signal(signal.SIGKILL)
        self._drain()
        outcome = self._judge_our_reason() or self._judge()
        notes = [f"node {loss.node} was lost: {loss.why}" for loss in self._missing()]
        notes += not_uploaded(checkpoints)
        if outcome.result != "succeeded":
            notes.append(outcome.reason)
        if self._state.stuck is not None:
            notes += self._state.stuck.lines
        checkpoints |= {loss.node: UploadReport(errors=["the node was lost"]) for loss in self._lost}
        self._state.checkpoints = UploadReport.merged(checkpoints)
        for note in dict.fromkeys([*notes, *announcements(self._state)]):
            self._log.note(note)
        self._log.close()
        reader = LogReader(elastic=self._state.elastic is not None)
        reader.feed(state.end_of_log(self._spec.run))
        self._state.metrics = reader.metrics
        self._state.state, self._state.ended = "done", time.time()
        self._state.result, self._state.exit_code, self._state.reason = outcome
        self._state.ranks = self._ranks.records()
        self._state.nodes_lost = sorted({loss.node for loss in self._missing()})
        state.write(self._state)

    def _let_ranks_save(self, seconds: float) -> None:
        """Have every rank told to end, and wait until all have. The launcher, which would not wait, is not told."""
        began = time.monotonic()
        for lease in self._leases.values():
            lease.quiet = False
            lease.channel.send({"type": "terminate", "seconds": seconds})
        said, limit = False, f"{seconds:.0f} s {'(run.grace)' if seconds == self._grace else 'before their node goes'}"
        while any(lease.ready and not (lease.quiet or lease.finished) for lease in self._leases.values()):
            self._turn(self._spec.beat)
            waited = time.monotonic() - began
            if not said and waited >= _NOTICEABLE_SECONDS:
                said = True
                self._log.note(f"waiting up to {limit} for the ranks to save and end")
            if waited > seconds + _STALL_SECONDS:
                break
        if said and time.monotonic() - began >= seconds:
            self._log.note(f"ranks that had not ended after {limit} were killed")

    def _judge_our_reason(self) -> Outcome | None:
        """The end of a run that failed for want of data, or was stuck; None: it did not, and was not."""
        if self._stopped:
            return None
        if self._waits_for_data and any(each.phase == "failed" for each in self._recorder.data.values()):
            return Outcome("failed", None, self._trouble)
        stuck = self._state.stuck
        return Outcome("failed", None, stuck.text) if stuck is not None else None

    def _judge(self) -> Outcome:
        return judge(
            np=self._spec.np,
            ended=self._ranks.ended,
            lost=self._lost,
            stopped=self._stopped,
            trouble=self._trouble,
            trouble_is_loss=self._trouble_is_loss,
            launcher=self._launcher_end,
            program=self._spec.program,
        )

    def _missing(self) -> Sequence[Loss]:
        """The nodes that were lost and are not back."""
        return self._lost

    def _drain(self) -> None:
        """Read the rest of the launcher's output: its processes are gone, so the pipe ends."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._launcher.output_open and time.monotonic() < deadline:
            self._turn(QUIET_SECONDS)
        self._close_output()
