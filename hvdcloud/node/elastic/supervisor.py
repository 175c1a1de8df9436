"""The supervisor of an elastic run: nodes leave and join while it trains.

Horovod's driver gets its hosts from a list (host_list.py) that follows the rules of membership.py. Where a loss ends
the driver all the same, which some orders of events do, it is started again from the newest checkpoint.
"""

from __future__ import annotations

import selectors
import signal
import time
from dataclasses import replace
from typing import Any

from hvdcloud.node.channel import Caller, Listener, Mailbox
from hvdcloud.node.elastic.admission import Admission
from hvdcloud.node.elastic.control_socket import socket_file
from hvdcloud.node.elastic.host_list import HostList
from hvdcloud.node.elastic.membership import Member, Membership, Place
from hvdcloud.node.elastic.provision import RunBundle, UnreachableError, provision
from hvdcloud.node.elastic.rejoin import Rejoins
from hvdcloud.node.elastic.rendezvous import Connections, Rendezvous
from hvdcloud.node.elastic.restart import GATHER, RESET, Restart
from hvdcloud.node.elastic.workers import Process, Workers
from hvdcloud.node.machine import outward_interface
from hvdcloud.node.records import state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.lease import Lease
from hvdcloud.node.run.outcome import CONSEQUENCE_SECONDS, Loss, Outcome, judge_elastic
from hvdcloud.node.run.supervisor import DRAIN_SECONDS, LAUNCHER_SECONDS, Supervisor
from hvdcloud.runs.state import ElasticLimits, RunState

MOST_RESTARTS = 8
"""How often Horovod is started again after a loss ended it."""
CAUSE_SECONDS = 150.0
"""An end of Horovod within this time and a step after a loss or a change counts as its consequence. Gloo's own waits,
one after the other, stay below."""
SILENCE_SECONDS = 8.0
"""Without a heartbeat, after which a node is lost. On a machine that is overloaded, beats come seconds late."""
_TURN_SECONDS = 0.25


class ElasticSupervisor(Supervisor):
    """One run whose spec has `elastic`, from its start to its end."""

    def __init__(self, spec: Spec, current: RunState) -> None:
        assert spec.elastic is not None
        driving = sum(1 for host in spec.hosts if not host.slots)
        self._membership = Membership(
            [Member(name=host.name, index=host.index, slots=host.slots) for host in spec.hosts],
            least=max(1, spec.elastic.min - driving),
            most=max(1, spec.elastic.max - driving),
            gloo_timeout=spec.gloo_timeout,
            wall=time.time,
        )
        self._hosts = HostList(spec.run, self._membership)
        # A node that begins alone is given the loopback interface, and others may join it.
        command = [outward_interface() if word == "lo" else word for word in spec.horovodrun]
        command += ["--host-discovery-script", str(self._hosts.script)]
        super().__init__(replace(spec, horovodrun=tuple(command)), current)
        self._silence = SILENCE_SECONDS
        self._workers = Workers(pace=spec.beat)
        self._connections = Connections(self._workers, self._leases, self._log, gloo_timeout=spec.gloo_timeout)
        self._longest_step = spec.elastic.longest_step
        self._rendezvous = Rendezvous(self._workers, self._connections.disconnect, longest_step=self._longest_step)
        self._mailbox = Mailbox()
        bundle = RunBundle.of(self._spec)
        self._rejoins = Rejoins(
            prepare=lambda node: provision(bundle, self._membership.members[node]),
            post=self._mailbox.post,
            prepared=self._prepared,
            refused=self._refused,
        )
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
        self._launched_at = 0.0
        self._disturbed_at = float("-inf")
        self._head_leaves = False
        self._state.elastic = ElasticLimits(min=spec.elastic.min, max=spec.elastic.max)
        self._state.world = 0
        self._state.members = self._membership.shown()

    # -- the start -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._hosts.create()
        self._selector.register(self._mailbox, selectors.EVENT_READ, self._mailbox.deliver)
        self._control = Listener(socket_file(self._spec.run), self._selector, kind=Caller, hear=self._hear_caller)
        for name in self._membership.members:
            self._hold(name, self._agent_command(name))
        self._launch()

    def _start_launcher(self) -> None:
        super()._start_launcher()
        self._launched_at = time.monotonic()

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
            self._rendezvous.help(now=now)
            if self._launcher.code is None and self._rendezvous.is_hopeless(now=now):
                self._log.note("after the loss of a node the workers do not find each other again")
                self._launcher.signal(signal.SIGKILL)
            if self._workers.check_formed(self._membership.expected(), now=now):
                self._rendezvous.over()
                self._membership.continued(now=now)
            elif self._workers.living() and self._launcher.code is None:
                self._membership.list_unused_again(self._workers.nodes_served(), now=now)
            self._list(now)
        self._rejoin(now)
        self._admission.see_off(now=now)
        self._recorder.world(ranks=len(self._workers.living()), nodes=len(self._workers.nodes()), now=now)
        self._recorder.members(self._membership.shown())

    def _list(self, now: float) -> None:
        """Change the list that Horovod sees, if that is due."""
        joining = self._hosts.update(now=now, patient_until=self._launched_at + self._spec.start)
        if joining is None:
            return
        self._workers.disturbed(now=now)
        for member in joining:
            if member.listings > 1 or self._state.world:
                self._disturbed_at = now
                self._recorder.event("node joins", member.name, f"as {member.alias}", note=f"node {member.name} joins")

    def _rejoin(self, now: float) -> None:
        """Try to reach the nodes that were lost, and to make those ready that are new."""
        away = [each.name for each in self._membership.members.values() if each.place in (Place.LOST, Place.PREPARING)]
        self._rejoins.try_due([name for name in away if name not in self._leases], now=now)

    def _prepared(self, node: str) -> None:
        member = self._membership.members[node]
        if member.place in (Place.LOST, Place.PREPARING) and not self._ending:
            self._membership.move(node, Place.JOINING)
            self._hold(node, self._agent_command(node, probe=True))

    def _refused(self, node: str, failure: Exception) -> None:
        member = self._membership.members[node]
        wanted = member.place is Place.PREPARING or not isinstance(failure, UnreachableError)
        if wanted and not self._ending and member.why != str(failure):
            self._membership.move(node, member.place, str(failure))
            self._log.note(f"node {node} cannot take part yet: {failure}")

    def _watched_nodes(self) -> set[str]:
        """The nodes with workers, while all of them have found each other; also once one has completed: Horovod then
        starts no other one, and the rest may wait for something that never comes."""
        settled = self._workers.formed or self._workers.any_completed()
        runs = self._restart is None and self._launcher.code is None
        return self._workers.nodes() if settled and runs else set()

    # -- what the agents say -------------------------------------------------------------------------------------------

    def _take(self, lease: Lease, kind: str, message: dict[str, Any]) -> None:
        node = lease.node
        member = self._membership.members[node]
        if kind == "ready":
            lease.ready = True
            self._rejoins.forget(node)
            self._connections.share_address(node)
            if member.place is Place.JOINING:
                self._membership.move(node, Place.READY)
        elif kind == "rank":
            alias = str(message.get("host") or node)
            process = Process(rank=int(message["rank"]), node=node, alias=alias, began=time.monotonic())
            self._workers.processes[node, int(message["pid"])] = process
            if self._state.state == "starting":
                self._state.state = "running"
                self._recorder.training()
        elif kind == "ended":
            self._worker_ended(member, message)
        elif kind == "connected":
            self._workers.connected(node, message["workers"], listening=message["listening"], now=time.monotonic())
        elif kind == "disconnected":
            self._connections.disconnected(node, str(message["error"]))
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
        process = self._workers.processes.get((member.name, int(message.get("pid") or 0)))
        ended = self._ranks.note_end(message, now=time.monotonic())
        if ended is None or process is None:
            return
        process.ended, record = ended, ended.record
        if self._ending or not record.exit_code or record.terminated:
            return
        if member.place is Place.LISTED and process.alias == member.alias:
            if record.signal is not None:
                self._disturbed_at = ended.at
            why = f"signal {record.signal}" if record.signal is not None else f"exit code {record.exit_code}"
            self._membership.failed(member.name, why, now=ended.at)
            note = f"the worker on node {member.name} ended with {why}"
            self._recorder.event("worker failed", member.name, why, note=note)
            self._note_loss(ended.at)

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
        self._admission.keep_uploads(lease.node, lease.checkpoints)
        if not dismissed:
            self._lose(lease, lease.refusal or "its agent ended")
            return
        self._release(lease)
        self._membership.move(lease.node, Place.GONE)
        self._workers.forget(lease.node)

    def _lose(self, lease: Lease, why: str) -> None:
        if self._ending:
            trouble = self._trouble
            super()._lose(lease, why)
            self._trouble = trouble
            return
        node = lease.node
        member = self._membership.members[node]
        why = why or lease.last_words() or "its connection broke"
        known, known_why, alias = member.place, member.why, member.alias
        had_left = not self._membership.is_listed(node) and node not in self._workers.nodes()
        self._release(lease)
        now = time.monotonic()
        self._membership.lost(node, why, now=now)
        self._workers.forget(node)
        self._launcher.hang_up(alias)
        self._rejoins.later(node)
        if known not in (Place.JOINING, Place.PREPARING):
            self._disturbed_at = now
            self._recorder.event("lost a node", node, why, note=f"node {node} was lost: {why}")
            if not had_left:
                self._note_loss(now)
        elif why != known_why and lease.refusal:
            self._log.note(f"node {node} cannot take part: {why}")

    def _note_loss(self, now: float) -> None:
        if self._restart is None:
            self._rendezvous.lost(now=now)

    def _hear_caller(self, caller: Caller) -> None:
        """Hand a request of `admit` or `dismiss` on."""
        messages = caller.channel.receive()
        if messages or caller.channel.closed:
            self._control.forget(caller)
            self._admission.answer(messages[0] if messages else {}, caller)

    def _forget_predecessor(self, node: str) -> None:
        """Before a new node is admitted under a name, end the lease on an earlier one, and the attempts to reach it."""
        if (lease := self._leases.get(node)) is not None:
            self._lose(lease, "it was replaced")
        self._rejoins.forget(node)

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
        if self._launcher.code is None:
            ended = self._workers.any_succeeded() and not self._workers.living()
            self._hurry_at = min(self._hurry_at, now + LAUNCHER_SECONDS) if ended else float("inf")
            return now >= self._hurry_at
        # A worker's own word may still be on its way, over a slower path than the launcher's.
        unexplained = bool(self._workers.living())
        self._hurry_at = min(self._hurry_at, now + max(DRAIN_SECONDS, CONSEQUENCE_SECONDS))
        if (self._launcher.output_open or unexplained) and now < self._hurry_at:
            return False
        if self._ended_by_a_loss(now):
            self._start_over()
            return False
        return True

    def _ended_by_a_loss(self, now: float) -> bool:
        """Whether Horovod can be started again and may then continue."""
        if self._launcher.code == 0 or self._state.restarts >= MOST_RESTARTS or self._workers.any_succeeded():
            return False
        return self._disturbed_at > self._launched_at and now - self._disturbed_at < CAUSE_SECONDS + self._longest_step

    def _start_over(self) -> None:
        self._state.restarts += 1
        what = f"Horovod did not recover from a loss (exit code {self._launcher.code})"
        self._log.note(f"{what}; it is started again from the newest checkpoint")
        self._launcher.signal(signal.SIGKILL, rest=True)
        self._close_output()
        self._hosts.write({})
        self._hurry_at = float("inf")
        self._restart = Restart(self._leases, now=time.monotonic())

    def _continue_restart(self, restart: Restart, now: float) -> None:
        for node in restart.late(now=now):
            self._lose(self._leases[node], "it did not get ready for another start")
        if not restart.is_over(now=now):
            return
        self._restart = None
        self._workers.begin(now=now)
        self._rendezvous.over()
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
        )

    def _missing(self) -> list[Loss]:
        return [*self._lost, *(Loss(member.name, member.why, 0.0) for member in self._lost_now())]

    def _lost_now(self) -> list[Member]:
        return [member for member in self._membership.members.values() if member.place is Place.LOST]
