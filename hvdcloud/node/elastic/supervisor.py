"""The supervisor of an elastic run: nodes leave and join while it trains.

Horovod's driver gets its hosts from a list, a file, that follows the rules of membership.py. What closes its
connections, Horovod notices and recovers from. A node that falls silent closes none, and a node that is lost while the
workers are still finding each other leaves them waiting: then, and where a loss ends the driver all the same, Horovod
is started again from the newest checkpoint.

torchrun would restart its workers by itself, but each from the checkpoints of its own node, and a node that joins has
none. So it is started again at every change, when all nodes have the newest checkpoint.
"""

from __future__ import annotations

import selectors
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hvdcloud.node import files, paths
from hvdcloud.node.channel import Caller, Listener, Mailbox
from hvdcloud.node.elastic.admission import Admission, socket_file
from hvdcloud.node.elastic.membership import MARGIN_BEATS, Member, Membership, Place
from hvdcloud.node.elastic.provision import UnreachableError, provision
from hvdcloud.node.elastic.restart import GATHER, RESET, Restart
from hvdcloud.node.elastic.workers import Workers
from hvdcloud.node.machine import outward_interface
from hvdcloud.node.mesh import hosts
from hvdcloud.node.records import state
from hvdcloud.node.records.secrets_file import read_environment
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.lease import Lease
from hvdcloud.node.run.outcome import CONSEQUENCE_SECONDS, Loss, Outcome, Worker, judge_elastic
from hvdcloud.node.run.supervisor import DRAIN_SECONDS, LAUNCHER_SECONDS, Supervisor
from hvdcloud.runs.launchers import ELASTIC_TIMEOUT_SECONDS
from hvdcloud.runs.reports import signal_name
from hvdcloud.runs.state import RunState
from hvdcloud.units import counted

MOST_RESTARTS = 8
"""How often in a row Horovod is started again where it has run for less than IN_VAIN_SECONDS."""
IN_VAIN_SECONDS = 60.0
CAUSE_SECONDS = 600.0
"""An end of Horovod within this time after a loss or a change counts as its consequence: the others have to end their
step first, and then wait for Gloo's timeout."""
SILENCE_SECONDS = 8.0
"""Without a heartbeat, after which a node is lost. On a machine that is overloaded, beats come seconds late."""
PREPARE_AGAIN_SECONDS = 10.0
"""Between two attempts to prepare a node that was lost."""
LOSS_SECONDS = SILENCE_SECONDS + 2.0
"""How long after a worker of torchrun has failed a loss that explains it may be noticed."""
_TURN_SECONDS = 0.25


class ElasticSupervisor(Supervisor):
    """One run whose spec has `elastic`, from its start to its end."""

    def __init__(self, spec: Spec, current: RunState) -> None:
        assert spec.elastic is not None
        self._horovod = spec.launcher == "horovod"
        self._membership = Membership(
            [Member(name=host.name, index=host.index, slots=host.slots) for host in spec.hosts],
            least=spec.elastic.min,
            most=spec.elastic.max,
            quiet=spec.gloo_timeout + MARGIN_BEATS * spec.beat,
            wall=time.time,
            renames=self._horovod,
        )
        self._hosts = paths.hosts_file(spec.run)
        self._script = paths.run_dir(spec.run) / "discover"
        """Prints the hosts; Horovod's driver calls it every second."""
        self._listed = False
        """Whether Horovod was given the first nodes."""
        self._used: set[str] = set()
        """The nodes of the last list."""
        # A node that begins alone is given the loopback interface, and others may join it.
        self._restarted = "Horovod" if self._horovod else spec.program
        """What notes name when the ranks are started again."""
        if self._horovod:
            command = [outward_interface() if word == "lo" else word for word in spec.horovodrun]
            spec = replace(spec, horovodrun=(*command, "--host-discovery-script", str(self._script)))
        super().__init__(spec, current)
        self._silence = SILENCE_SECONDS
        self._workers = Workers()
        self._mailbox = Mailbox()
        self._environment = read_environment(spec.run)
        self._prepare_at: dict[str, float] = {}
        """When nodes that were lost, or are new, are tried next; infinite while they are."""
        self._admission = Admission(
            head=self._head,
            membership=self._membership,
            workers=self._workers,
            leases=self._leases,
            recorder=self._recorder,
            replaced=self._forget_predecessor,
        )
        self._retired: list[Lease] = []
        self._restart: Restart | None = None
        self._restarts_in_vain = 0
        self._launched_at = 0.0
        self._disturbed_at = float("-inf")
        self._waits_since = float("inf")
        """Since when torchrun waits for enough nodes to be started on."""
        self._head_leaves = False
        self._state.elastic = spec.elastic
        self._state.world = 0
        self._state.members = self._membership.shown()

    # -- the start -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._write_hosts({}, names={})
        self._script.write_text(f"#!/bin/sh\nexec cat {self._hosts}\n")
        self._script.chmod(0o755)
        self._selector.register(self._mailbox, selectors.EVENT_READ, self._mailbox.deliver)
        self._control = Listener(socket_file(self._spec.run), self._selector, kind=Caller, hear=self._hear_caller)
        for name in self._membership.members:
            self._hold(name, self._agent_command(name))
        self._launch()

    def _start_launcher(self) -> None:
        """Start Horovod, which waits for its nodes; torchrun is started on the nodes of the list, when there is one."""
        self._launched_at = time.monotonic()
        if self._horovod or self._hosts.read_text():
            self._waits_since = float("inf")
            super()._start_launcher()
        else:
            self._waits_since = self._launched_at

    # -- every round ---------------------------------------------------------------------------------------------------

    def _turn(self, seconds: float) -> None:
        super()._turn(min(seconds, _TURN_SECONDS))
        if self._ending:
            return
        now = time.monotonic()
        for lease in self._retired:
            self._retire(lease)
        self._retired.clear()
        if self._restart is not None:
            self._continue_restart(self._restart, now)
        elif not self._waits_for_data:
            settled = self._membership.settled(now=now)
            if self._horovod and settled and self._launcher.runs and self._workers.living():
                self._workers.got_over()
                self._membership.list_unused_again(self._workers.nodes_served(), now=now)
            self._list(now)
        self._prepare(now)
        self._admission.see_off(now=now)
        self._recorder.world(ranks=len(self._workers.living()), nodes=len(self._workers.nodes()), now=now)
        self._recorder.members(self._membership.shown())

    def _list(self, now: float) -> None:
        """Change the list that the launcher sees, if that is due. At first every node that starts is waited for."""
        membership = self._membership
        if not self._horovod and len(membership.usable()) < membership.least:
            return
        if not self._listed:
            patient = len(membership.usable()) < membership.least or now < self._launched_at + self._spec.start
            if patient and any(member.place is Place.JOINING for member in membership.members.values()):
                return
            self._listed = True
        # torchrun's list is empty while it is started again.
        before = {member.name for member in membership.in_use()} if self._horovod else self._used
        if (slots := membership.change(now=now)) is None:
            return
        in_use = membership.in_use()
        self._write_hosts(slots, names={member.alias: member.name for member in in_use})
        self._used = {member.name for member in in_use}
        for member in in_use:
            if member.name not in before and (member.listings > 1 or self._state.world):
                self._disturbed_at = now
                self._recorder.event("node joins", member.name, f"as {member.alias}", note=f"node {member.name} joins")
        if not self._horovod:
            if self._launcher.runs:
                self._start_over("the nodes of the run change")
            else:
                self._start_launcher()

    def _write_hosts(self, slots: Mapping[str, int], *, names: Mapping[str, str]) -> None:
        """Make these the launcher's list, in one move: the slots, and the nodes' own names, by alias."""
        hosts.write_aliases({alias: name for alias, name in names.items() if alias != name})
        files.replace(self._hosts, "".join(f"{alias}:{number}\n" for alias, number in slots.items()))

    def _prepare(self, now: float) -> None:
        """Prepare the nodes that were lost, or are new, each in a thread of its own; again where that fails."""
        for member in self._membership.members.values():
            away = member.place in (Place.LOST, Place.PREPARING) and member.name not in self._leases
            if away and now >= self._prepare_at.get(member.name, now):
                self._prepare_at[member.name] = float("inf")
                threading.Thread(target=self._provision, args=(member,), name="provision", daemon=True).start()

    def _provision(self, member: Member) -> None:
        failure: Exception | None = None
        try:
            provision(member, self._spec, self._environment)
        except Exception as error:  # noqa: BLE001 - reported by the main loop, and tried again
            failure = error
        self._mailbox.post(lambda: self._prepared(member, failure))

    def _prepared(self, member: Member, failure: Exception | None) -> None:
        self._prepare_at[member.name] = time.monotonic() + PREPARE_AGAIN_SECONDS
        if self._ending or member.place not in (Place.LOST, Place.PREPARING):
            return
        if failure is None:
            self._membership.move(member.name, Place.JOINING)
            self._hold(member.name, self._agent_command(member.name, probe=True))
        elif member.why != str(failure) and (
            member.place is Place.PREPARING or not isinstance(failure, UnreachableError)
        ):
            self._membership.move(member.name, member.place, str(failure))
            self._log.note(f"node {member.name} cannot take part yet: {failure}")

    def _watched_nodes(self) -> set[str]:
        """The nodes with workers, once they have found each other; also once one has completed: Horovod then starts no
        other one, and the rest may wait for something that never comes."""
        settled = self._membership.settled(now=time.monotonic()) or self._workers.any_completed()
        return self._workers.nodes() if settled and self._restart is None and self._launcher.runs else set()

    # -- what the agents say -------------------------------------------------------------------------------------------

    def _take(self, lease: Lease, kind: str, message: dict[str, Any]) -> None:
        node = lease.node
        member = self._membership.members[node]
        if kind == "ready":
            lease.ready = True
            if member.place is Place.JOINING:
                self._membership.move(node, Place.READY)
        elif kind == "rank":
            alias = str(message.get("host") or member.alias)
            worker = Worker(rank=int(message["rank"]), node=node, alias=alias)
            self._workers.processes[node, int(message["pid"])] = worker
            if self._state.state == "starting":
                self._state.state = "running"
                self._recorder.training()
        elif kind == "ended":
            self._worker_ended(member, message)
        elif kind in (RESET, GATHER):
            if error := message.get("error"):
                what = "upload" if kind == RESET else "fetch"
                self._log.note(f"node {node} could not {what} every checkpoint: {error}")
            if self._restart is not None:
                self._restart.did(node, kind)
        else:
            super()._take(lease, kind, message)
            if kind == "finished" and not self._ending:
                self._retired.append(lease)

    def _worker_ended(self, member: Member, message: dict[str, Any]) -> None:
        worker = self._workers.processes.get((member.name, int(message.get("pid") or 0)))
        ended = self._ranks.note_end(message, now=time.monotonic())
        if ended is None or worker is None:
            return
        worker.ended, record = ended, ended.record
        if self._ending or self._restart is not None or not record.exit_code or record.terminated:
            return
        if not self._horovod:
            # An exception may be the consequence of a loss that is yet to be noticed; if it is not, it ends the run.
            if record.signal is not None:
                self._disturbed_at = ended.at
                self._start_over(f"the worker on node {member.name} was killed by {signal_name(record.signal)}")
            return
        if member.place is Place.LISTED and worker.alias == member.alias:
            if record.signal is not None:
                self._disturbed_at = ended.at
            why = f"signal {record.signal}" if record.signal is not None else f"exit code {record.exit_code}"
            self._membership.failed(member.name, why, now=ended.at)
            note = f"the worker on node {member.name} ended with {why}"
            self._recorder.event("worker failed", member.name, why, note=note)

    def _leaves(self, lease: Lease, why: str) -> None:
        super()._leaves(lease, why)
        if lease.node == self._head:
            # Its ranks train until its container ends, and the run with it: the head is not replaced.
            self._head_leaves = True
            return
        member = self._membership.members[lease.node]
        if member.place not in (Place.LOST, Place.GONE):
            self._membership.move(member.name, Place.LEAVING, why)

    def _orphaned(self, lease: Lease, why: str) -> None:
        """Its lease is retired, and then the node is tried again; a head that leaves ends the run."""
        lease.refusal = why
        if lease.node == self._head and self._head_leaves:
            super()._orphaned(lease, why)
            self._membership.move(self._head, Place.LOST, why)

    def _retire(self, lease: Lease) -> None:
        """Close the lease of an agent that has finished while the run continues."""
        member = self._membership.members[lease.node]
        dismissed = member.place is Place.LEAVING and not lease.refusal
        if not dismissed:
            self._lose(lease, lease.refusal or "its agent ended")
            return
        self._release(lease)
        self._membership.move(lease.node, Place.GONE)
        self._workers.forget(lease.node)

    def _lose(self, lease: Lease, why: str, *, silent: bool = False) -> None:
        if self._ending:
            trouble = self._trouble
            super()._lose(lease, why)
            self._trouble = trouble
            return
        node = lease.node
        member = self._membership.members[node]
        why = why or lease.last_words() or "its connection broke"
        now = time.monotonic()
        known, known_why = member.place, member.why
        used = self._membership.is_listed(node) or node in self._workers.nodes()
        settled = self._membership.settled(now=now)
        self._release(lease)
        self._membership.lost(node, why, now=now)
        self._workers.forget(node)
        self._prepare_at[node] = now + PREPARE_AGAIN_SECONDS
        if known not in (Place.JOINING, Place.PREPARING):
            self._disturbed_at = now
            self._recorder.event("lost a node", node, why, note=f"node {node} was lost: {why}")
            if used and silent:
                # The workers that are connected to it would wait for Gloo's timeout, or without limit.
                self._start_over(f"node {node} fell silent")
            elif used and not self._horovod:
                self._start_over(f"node {node} was lost")
            elif used and not settled:
                self._start_over(f"node {node} was lost while the workers were connecting to each other")
        elif why != known_why and lease.refusal:
            self._log.note(f"node {node} cannot take part: {why}")

    def _hear_caller(self, caller: Caller) -> None:
        """Hand a request of `admit` or `dismiss` on."""
        messages = caller.channel.receive()
        if messages or caller.channel.closed:
            self._control.forget(caller)
            self._admission.answer(messages[0] if messages else {}, caller)

    def _forget_predecessor(self, node: str) -> None:
        """Before a new node is admitted under a name, end the lease on an earlier one."""
        if (lease := self._leases.get(node)) is not None:
            self._lose(lease, "it was replaced")
        self._prepare_at.pop(node, None)

    # -- the end, or another start -------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._stop:
            return super()._is_over()
        if self._log.failure is not None:
            self._trouble = f"the log could not be written on node {self._head}: {self._log.failure.strerror}"
        if self._waits_for_data:
            return bool(self._trouble)
        if self._trouble:
            return True
        if self._restart is not None:
            return False
        now = time.monotonic()
        if now - self._waits_since > ELASTIC_TIMEOUT_SECONDS:
            least, minutes = counted(self._membership.least, "node"), ELASTIC_TIMEOUT_SECONDS // 60
            self._trouble = f"for {minutes} minutes, fewer than {least} could be used (run.elastic.min)"
            return True
        if not self._horovod and any(
            worker.failed and worker.ended and now - worker.ended.at > LOSS_SECONDS
            for worker in self._workers.processes.values()
        ):
            return True
        if self._launcher.code is None:
            ended = self._workers.any_succeeded() and not self._workers.living()
            self._hurry_at = min(self._hurry_at, now + LAUNCHER_SECONDS) if ended else float("inf")
            return now >= self._hurry_at
        # A worker's own word may still be on its way, over a slower path than the launcher's.
        unexplained = bool(self._workers.living())
        self._hurry_at = min(self._hurry_at, now + max(DRAIN_SECONDS, CONSEQUENCE_SECONDS))
        if (self._launcher.output_open or unexplained) and now < self._hurry_at:
            return False
        by_a_loss = self._disturbed_at > self._launched_at and now - self._disturbed_at < CAUSE_SECONDS
        if self._launcher.code != 0 and by_a_loss:
            self._start_over(f"{self._restarted} did not recover from a loss (exit code {self._launcher.code})")
        return self._restart is None

    def _start_over(self, why: str) -> None:
        """Start the ranks again from the newest checkpoint, unless it is being done, would be in vain, or the training
        has ended well on some node."""
        if self._restart is not None or not self._launched_at or self._workers.any_completed():
            return
        soon = time.monotonic() - self._launched_at < IN_VAIN_SECONDS
        self._restarts_in_vain = self._restarts_in_vain + 1 if soon else 0
        if self._restarts_in_vain >= MOST_RESTARTS:
            return
        self._state.restarts += 1
        self._log.note(f"{why}; {self._restarted} is started again from the newest checkpoint")
        self._launcher.signal(signal.SIGKILL, rest=True)
        self._close_output()
        self._write_hosts({}, names={})
        self._hurry_at = float("inf")
        self._restart = Restart(self._leases, now=time.monotonic())

    def _continue_restart(self, restart: Restart, now: float) -> None:
        for node in restart.late(now=now):
            self._lose(self._leases[node], "it did not get ready for another start")
        if not restart.is_over(now=now):
            return
        self._restart = None
        self._launcher.forget()
        self._workers.processes.clear()
        self._membership.started_again(now=now)
        state.record_event(self._spec.run, "started again", detail="from the newest checkpoint")
        self._start_launcher()

    def _finish(self) -> None:
        self._admission.end()
        self._control.close()
        self._state.world = 0
        self._recorder.members(self._membership.shown())
        super()._finish()

    def _judge(self) -> Outcome:
        return judge_elastic(
            workers=list(self._workers.processes.values()),
            least=self._membership.least,
            lost=self._missing(),
            stopped=self._stopped,
            trouble=self._trouble,
            launcher=self._launcher_end,
            program=self._spec.program,
        )

    def _missing(self) -> list[Loss]:
        lost = (member for member in self._membership.members.values() if member.place is Place.LOST)
        return [*self._lost, *(Loss(member.name, member.why, 0.0) for member in lost)]
