"""The supervisor of an elastic run of Horovod, whose driver asks for its hosts every second.

What closes its connections, Horovod notices and recovers from. A node that falls silent closes none, and a node that is
lost while the workers are still finding each other leaves them waiting: then, and where a loss ends the driver all the
same, Horovod is started again from the newest checkpoint.
"""

from __future__ import annotations

from dataclasses import replace

from hvdcloud.node import paths
from hvdcloud.node.elastic.membership import Member, Place
from hvdcloud.node.elastic.supervisor import ElasticSupervisor
from hvdcloud.node.machine import outward_interface
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.outcome import Ended, Worker
from hvdcloud.runs.state import RunState


class HorovodSupervisor(ElasticSupervisor):
    """One elastic run of Horovod, from its start to its end."""

    def __init__(self, spec: Spec, current: RunState) -> None:
        self._script = paths.run_dir(spec.run) / "discover"
        """Prints the hosts for Horovod's driver."""
        # A node that begins alone is given the loopback interface, and others may join it.
        command = [outward_interface() if word == "lo" else word for word in spec.horovodrun]
        spec = replace(spec, horovodrun=(*command, "--host-discovery-script", str(self._script)))
        super().__init__(spec, current, restarted="Horovod", renames=True)

    def _begin(self) -> None:
        self._script.write_text(f"#!/bin/sh\nexec cat {self._hosts}\n")
        self._script.chmod(0o755)
        super()._begin()

    def _update_list(self, now: float) -> bool:
        if self._membership.settled(now=now) and self._launcher.runs and self._workers.living():
            self._workers.got_over()
            self._membership.list_unused_again(self._workers.nodes_served(), now=now)
        # A node that is listed under another name joins again.
        self._used = {member.name for member in self._membership.in_use()}
        return super()._update_list(now)

    def _worker_failed(self, member: Member, worker: Worker, ended: Ended) -> None:
        """Take the node off the list, unless the worker is that of an earlier name: Horovod goes on without it."""
        if member.place is not Place.LISTED or worker.alias != member.alias:
            return
        why = f"exit code {ended.record.exit_code}"
        if ended.record.signal is not None:
            self._disturbed_at = ended.at
            why = f"signal {ended.record.signal}"
        self._membership.failed(member.name, why, now=ended.at)
        note = f"the worker on node {member.name} ended with {why}"
        self._recorder.event("worker failed", member.name, why, note=note)

    def _used_node_lost(self, node: str, *, settled: bool) -> None:
        if not settled:
            self._start_over(f"node {node} was lost while the workers were connecting to each other")
