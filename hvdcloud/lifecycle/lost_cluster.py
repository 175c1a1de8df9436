"""The cluster of a run that was lost: whether it was, and its deletion, once the bucket has all that its nodes hold."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.silent_hosts import silent_error, silent_hosts
from hvdcloud.runs import retry as policy
from hvdcloud.runs.retry import Cause, Pending

if TYPE_CHECKING:
    from hvdcloud.cluster.cost import Meter
    from hvdcloud.lifecycle.context import Context


class LostCluster:
    """The cluster of a run's attempt, which may be followed by another one.

    Args:
        command: what the user has typed: up, run or launch.
        meter: counts what it costs.
    """

    def __init__(self, context: Context, *, command: str, meter: Meter) -> None:
        self._context = context
        self._command = command
        self._meter = meter

    def lacks_nodes(self) -> bool:
        """Whether nodes of the cluster are gone or do not run, and no command has deleted it meanwhile."""
        try:
            now = self._context.query()
            return not (now is not None and now.whole) and not self.was_deleted(Cause.LOST)
        except HvdcloudError:
            # What the provider does not say is not acted upon; the present error is raised.
            return False

    def was_deleted(self, cause: Cause) -> bool:
        """Whether `down` has deleted the cluster: what a user has deleted is not made again.

        From another machine it leaves nothing at all, while nodes that are lost leave the cluster's firewall rules or
        its network.
        """
        seen = self._meter.cluster
        if seen is None or self._context.state.journal.begun_down(seen.id):
            return True
        now = self._context.provider.cluster(self._context.name)
        return (now is None or now.id != seen.id) and cause is Cause.LOST

    def clear(self, pending: Pending) -> Pending:
        """Delete what is left of the lost cluster, once the bucket has all that its nodes hold.

        Returns the attempts with what the last one has cost until nothing of it was left.

        Raises:
            CheckpointError: a node holds what the bucket has not; nothing is deleted.
            TeardownError: something could not be deleted, or a host does not answer.
            KeyboardInterrupt: Ctrl-C meanwhile, now that it is deleted.
        """
        context, interrupted = self._context, threading.Event()
        lost, began = pending.lost, time.time()

        def tell() -> None:
            interrupted.set()
            context.console.say("interrupted; first its checkpoints are saved and its nodes are deleted")

        with uninterrupted(tell):
            at_least = max(lost.dollars or 0.0, self._delete(pending, on_interrupt=interrupted.set))
        spent = self._meter.close(at_least=at_least)
        lost = replace(lost, dollars=spent, seconds=lost.seconds + time.time() - began)
        pending = replace(pending, attempts=(*pending.attempts[:-1], lost))
        self.note(pending)
        if interrupted.is_set():
            raise KeyboardInterrupt
        return pending

    def note(self, pending: Pending) -> None:
        """Write down that another attempt follows: a command that is killed from now on is continued."""
        cluster_id = pending.lost.cluster_id
        self._context.state.journal.record(policy.BEGUN, cluster_id=cluster_id, **pending.to_json())

    def delete_all(self, pending: Pending) -> None:
        """Delete what exists of the lost cluster, and of the next one, whose run has not begun. Raises as `clear`."""
        from hvdcloud.lifecycle.down import delete_cluster

        self._delete(pending)
        cluster = self._context.query()
        if cluster is not None and cluster.id not in pending.clusters:
            delete_cluster(self._context, cluster)
            self._context.state.forget()

    def _delete(self, pending: Pending, *, on_interrupt: Callable[[], object] = lambda: None) -> float:
        """Delete the lost cluster, if it exists; what its existing nodes have cost, in dollars. Raises as `clear`."""
        from hvdcloud.lifecycle.down import delete_cluster
        from hvdcloud.lifecycle.save import save_checkpoints

        context = self._context
        with context.state.lock(f"{self._command}, which tries a run again"):
            cluster = context.query()
            if cluster is None or cluster.id not in pending.clusters:
                return 0.0
            if silent := silent_hosts(context, cluster):
                raise silent_error(context, silent)
            if self._meter.cluster is None:
                self._meter.observe(cluster)
            if rest := save_checkpoints(context, cluster, run=pending.lost.run):
                delete_cluster(context, rest, on_interrupt=on_interrupt)
            context.state.forget()
            return cluster.dollars_so_far
