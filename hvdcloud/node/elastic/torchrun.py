"""The supervisor of an elastic run of torchrun, which is started again at every change.

torchrun would restart its workers by itself, but each from the checkpoints of its own node, and a node that joins has
none. So it is started again when all nodes have the newest checkpoint, on the nodes of the list.
"""

from __future__ import annotations

import time

from hvdcloud.node.elastic.membership import Member
from hvdcloud.node.elastic.supervisor import SILENCE_SECONDS, ElasticSupervisor
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.outcome import Ended, Worker
from hvdcloud.runs.launchers import ELASTIC_TIMEOUT_SECONDS
from hvdcloud.runs.reports import signal_name
from hvdcloud.runs.state import RunState
from hvdcloud.units import counted

LOSS_SECONDS = SILENCE_SECONDS + 2.0
"""How long after a worker has failed a loss that explains it may be noticed."""


class TorchrunSupervisor(ElasticSupervisor):
    """One elastic run of torchrun, from its start to its end."""

    def __init__(self, spec: Spec, current: RunState) -> None:
        super().__init__(spec, current, restarted=spec.program, renames=False)
        self._waits_since = float("inf")
        """Since when there are too few nodes to start torchrun on."""

    def _start_launcher(self) -> None:
        """Start torchrun on the nodes of the list, when there is one."""
        if self._hosts.read_text():
            self._waits_since = float("inf")
            super()._start_launcher()
        else:
            self._waits_since = self._launched_at = time.monotonic()

    def _update_list(self, now: float) -> bool:
        """Change the list, never to fewer than the least number of nodes, and start torchrun on its nodes."""
        enough = len(self._membership.usable()) >= self._membership.least
        if not enough or not super()._update_list(now):
            return False
        if self._launcher.runs:
            self._start_over("the nodes of the run change")
        else:
            self._start_launcher()
        return True

    def _worker_failed(self, member: Member, worker: Worker, ended: Ended) -> None:
        # An exception may be the consequence of a loss that is yet to be noticed; if it is not, it ends the run.
        if ended.record.signal is not None:
            self._disturbed_at = ended.at
            self._start_over(f"the worker on node {member.name} was killed by {signal_name(ended.record.signal)}")

    def _used_node_lost(self, node: str, *, settled: bool) -> None:
        self._start_over(f"node {node} was lost")

    def _cannot_continue(self, now: float) -> bool:
        """Whether too few nodes were usable for too long, or a worker has failed and no lost node explains it."""
        if now - self._waits_since > ELASTIC_TIMEOUT_SECONDS:
            least, minutes = counted(self._membership.least, "node"), ELASTIC_TIMEOUT_SECONDS // 60
            self._trouble = f"for {minutes} minutes, fewer than {least} could be used (run.elastic.min)"
            return True
        ends = (worker.ended for worker in self._workers.processes.values() if worker.failed)
        return any(ended is not None and now - ended.at > LOSS_SECONDS for ended in ends)
