"""The supervisor of an elastic run: nodes leave and join while it trains.

Its launcher's list of nodes, a file, follows the rules of membership.py. horovod.py and torchrun.py have what differs:
what a changed list, a lost node and a failed worker lead to.
"""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from hvdcloud.node import files, paths
from hvdcloud.node.elastic.admission import Admission
from hvdcloud.node.elastic.membership import MARGIN_BEATS, Member, Membership, Place
from hvdcloud.node.elastic.provision import Provisioning, UnreachableError
from hvdcloud.node.elastic.restart import GATHER, RESET, Restart
from hvdcloud.node.elastic.workers import Workers
from hvdcloud.node.mesh import hosts
from hvdcloud.node.records import state
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.lease import Lease
from hvdcloud.node.run.outcome import CONSEQUENCE_SECONDS, Ended, Loss, Outcome, Worker, judge_elastic
from hvdcloud.node.run.supervisor import DRAIN_SECONDS, LAUNCHER_SECONDS, START_SECONDS, Supervisor
from hvdcloud.runs.state import RunState

MOST_RESTARTS = 8
"""How often in a row the launcher is started again where it has run for less than IN_VAIN_SECONDS."""
IN_VAIN_SECONDS = 60.0
CAUSE_SECONDS = 600.0
"""An end of the launcher within this time after a loss or a change counts as its consequence: the others have to end
their step first, and then wait for Gloo's timeout."""
SILENCE_SECONDS = 8.0
"""Without a heartbeat, after which a node is lost. On a machine that is overloaded, beats come seconds late."""
_TURN_SECONDS = 0.25


class ElasticSupervisor(Supervisor, ABC):
    """One run whose spec has `elastic`, from its start to its end.

    Args:
        restarted: what notes say is started again.
        renames: a node gets another name each time it is listed.
    """

    def __init__(self, spec: Spec, current: RunState, *, restarted: str, renames: bool) -> None:
        assert spec.elastic is not None
        super().__init__(spec, current)
        self._restarted = restarted
        self._membership = Membership(
            [Member(name=host.name, index=host.index, slots=host.slots) for host in spec.hosts],
            least=spec.elastic.min,
            most=spec.elastic.max,
            quiet=spec.gloo_timeout + MARGIN_BEATS * spec.beat,
            wall=time.time,
            renames=renames,
        )
        self._hosts = paths.hosts_file(spec.run)
        self._listed = False
        """Whether the launcher was given the first nodes."""
        self._used: set[str] = set()
        """The nodes that the launcher uses; one that is added to them joins."""
        self._silence = SILENCE_SECONDS
        self._workers = Workers()
        self._provisioning = Provisioning(spec, self._selector, done=self._provisioned)
        self._admission = Admission(
            run=spec.run,
            selector=self._selector,
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
        self._head_leaves = False
        self._state.elastic = spec.elastic
        self._state.world = 0
        self._state.members = self._membership.shown()

    # -- the start -----------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._write_hosts({})
        for name in self._membership.members:
            self._hold(name, self._agent_command(name))
        self._launch()

    def _start_launcher(self) -> None:
        self._launched_at = time.monotonic()
        super()._start_launcher()

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
            self._update_list(now)
        away = (member for member in self._membership.members.values() if member.name not in self._leases)
        self._provisioning.start(away, now=now)
        self._admission.see_off(now=now)
        self._recorder.world(ranks=len(self._workers.living()), nodes=len(self._workers.nodes()), now=now)
        self._recorder.members(self._membership.shown())

    def _update_list(self, now: float) -> bool:
        """Change the list that the launcher sees, if that is due. At first every node that starts is waited for.
        Returns whether it has changed."""
        membership = self._membership
        if not self._listed:
            patient = len(membership.usable()) < membership.least or now < self._launched_at + START_SECONDS
            if patient and any(member.place is Place.JOINING for member in membership.members.values()):
                return False
            self._listed = True
        if (slots := membership.change(now=now)) is None:
            return False
        self._write_hosts(slots)
        before, self._used = self._used, {member.name for member in membership.in_use()}
        for member in membership.in_use():
            if member.name not in before and (member.listings > 1 or self._state.world):
                self._disturbed_at = now
                self._recorder.event("node joins", member.name, f"as {member.alias}", note=f"node {member.name} joins")
        return True

    def _write_hosts(self, slots: Mapping[str, int]) -> None:
        """Make these slots by alias the launcher's list, in one move."""
        names = {member.alias: member.name for member in self._membership.in_use() if member.alias in slots}
        hosts.write_aliases({alias: name for alias, name in names.items() if alias != name})
        files.replace(self._hosts, "".join(f"{alias}:{number}\n" for alias, number in slots.items()))

    def _provisioned(self, member: Member, failure: Exception | None) -> None:
        """Start the agent of a node that was prepared, or say why it was not."""
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
        """The nodes with workers, once they have found each other; also once one has completed: no other one is started
        then, and the rest may wait for something that never comes."""
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
        if record.exit_code and not (self._ending or self._restart is not None or record.terminated):
            self._worker_failed(member, worker, ended)

    @abstractmethod
    def _worker_failed(self, member: Member, worker: Worker, ended: Ended) -> None:
        """Do what follows when a worker has failed by itself, while no restart is under way."""

    def _leaves(self, lease: Lease, why: str) -> None:
        super()._leaves(lease, why)
        if lease.node == self._head:
            # Its ranks train until its container ends, and the run with it: the head is not replaced.
            self._head_leaves = True
        elif self._membership.members[lease.node].place not in (Place.LOST, Place.GONE):
            self._membership.move(lease.node, Place.LEAVING, why)

    def _orphaned(self, lease: Lease, why: str) -> None:
        """Its lease is retired, and then the node is tried again; a head that leaves ends the run."""
        lease.refusal = why
        if lease.node == self._head and self._head_leaves:
            super()._orphaned(lease, why)
            self._membership.move(self._head, Place.LOST, why)

    def _retire(self, lease: Lease) -> None:
        """Close the lease of an agent that has finished while the run continues."""
        member = self._membership.members[lease.node]
        if member.place is Place.LEAVING and not lease.refusal:
            self._release(lease)
            self._membership.move(lease.node, Place.GONE)
            self._workers.forget(lease.node)
        else:
            self._lose(lease, lease.refusal or "its agent ended")

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
        self._provisioning.put_off(node, now=now)
        if known not in (Place.JOINING, Place.PREPARING):
            self._disturbed_at = now
            self._recorder.event("lost a node", node, why, note=f"node {node} was lost: {why}")
            if used and silent:
                # The workers that are connected to it would wait for Gloo's timeout, or without limit.
                self._start_over(f"node {node} fell silent")
            elif used:
                self._used_node_lost(node, settled=settled)
        elif why != known_why and lease.refusal:
            self._log.note(f"node {node} cannot take part: {why}")

    @abstractmethod
    def _used_node_lost(self, node: str, *, settled: bool) -> None:
        """Do what follows when a node is lost, other than by silence. `settled`: its workers had found the others."""

    def _forget_predecessor(self, node: str) -> None:
        """Before a new node is admitted under a name, end the lease on an earlier one."""
        if (lease := self._leases.get(node)) is not None:
            self._lose(lease, "it was replaced")
        self._provisioning.forget(node)

    # -- the end, or another start -------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        if self._stop:
            return super()._is_over()
        if self._log.failure is not None:
            self._trouble = f"the log could not be written on node {self._head}: {self._log.failure.strerror}"
        if self._trouble or self._waits_for_data or self._restart is not None:
            return bool(self._trouble)
        now = time.monotonic()
        if self._cannot_continue(now):
            return True
        if self._launcher.code is None:
            ended = self._workers.any_succeeded() and not self._workers.living()
            self._hurry_at = min(self._hurry_at, now + LAUNCHER_SECONDS) if ended else float("inf")
            return now >= self._hurry_at
        self._hurry_at = min(self._hurry_at, now + max(DRAIN_SECONDS, CONSEQUENCE_SECONDS))
        # A worker's own word may still be on its way, over a slower path than the launcher's.
        if (self._launcher.output_open or self._workers.living()) and now < self._hurry_at:
            return False
        by_a_loss = self._disturbed_at > self._launched_at and now - self._disturbed_at < CAUSE_SECONDS
        if self._launcher.code != 0 and by_a_loss:
            self._start_over(f"{self._restarted} did not recover from a loss (exit code {self._launcher.code})")
        return self._restart is None

    def _cannot_continue(self, now: float) -> bool:
        """Whether the run has to end although its launcher has not."""
        return False

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
        self._write_hosts({})
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
