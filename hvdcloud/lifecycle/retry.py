"""`run.retry`: pull, `down`, `up` and `run` again when a run has lost nodes, within what is left of the limits."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import list_runs
from hvdcloud.cluster.cost import Meter
from hvdcloud.cluster.model import NodeState
from hvdcloud.errors import CheckpointError, HvdcloudError, InterruptedByUserError, NodeError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.down import pull_and_down
from hvdcloud.lifecycle.pull import check_target
from hvdcloud.lifecycle.run import run
from hvdcloud.lifecycle.ssh_nodes.homecoming import awake, mirror_of
from hvdcloud.lifecycle.up import up
from hvdcloud.providers.base import UnseenError
from hvdcloud.runs import retry as policy
from hvdcloud.runs.retry import Attempt, Within
from hvdcloud.units import dollars, seconds

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.lifecycle.run_result import RunResult
    from hvdcloud.lifecycle.run_spec import RunOptions

PATIENCE_SECONDS = 600.0
"""How long agents may take to end the ranks of a run whose head is lost, or a machine of the user's to boot again."""
PAUSE_SECONDS = 1.0


class Retries:
    """The attempts of one command's run; without `run.retry` there is one.

    Args:
        command: what the user has typed: run or launch.
        meter: counts what all attempts cost together.
    """

    def __init__(self, context: Context, *, command: str, meter: Meter) -> None:
        self._context, self._command, self._meter = context, command, meter
        self._attempts: tuple[Attempt, ...] = ()
        self._ends = _now()
        """The deadline of all attempts."""
        self._dollars_per_hour = 0.0
        """Of the newest cluster."""

    def run(self, options: RunOptions) -> RunResult:
        """`run`, and again on a new cluster as often as `run.retry` allows.

        Raises as `run` and `up`; also CheckpointError: a node holds what is nowhere else, and stays.
        """
        console, most = self._context.console, self._context.config.run.retry
        if not most or options.detach:
            if most:
                console.warn("run.retry needs a client that follows the run: no one does with --detach")
            return run(self._context, options, meter=self._meter)
        check_target(self._context)
        found = self._attempt(options)
        while self._attempts[-1].lost:
            number, left, rate = len(self._attempts), self._left(), self._dollars_per_hour
            why_not = policy.refusal(attempts=number, most=most, left=left, dollars_per_hour=rate, now=_now())
            if why_not:
                console.say(f"{self._attempts[-1].ended(number)}; it is not tried again: {why_not}")
                break
            found = self._try_again(options)
        if isinstance(found, NodeError):
            found.add_details(*(attempt.ended(number) for number, attempt in enumerate(self._attempts, 1)))
            raise found
        return replace(found, attempts=self._attempts)

    def _attempt(self, options: RunOptions) -> RunResult | NodeError:
        """One run; its result, or the error where it was lost with its head or could not start. Raises as `run`."""
        began, known = time.time(), self._known_runs()
        try:
            result = run(self._context, options, meter=self._meter)
        except NodeError as error:
            started = [run_id for run_id in self._known_runs() if run_id not in known]
            # What a cluster lacked before this command began is the user's to bring back.
            ours = started or self._attempts or self._command == "launch"
            if not ours or not self._lacks_nodes():
                raise
            self._note(began, run_id=started[-1] if started else "", reason=error.message)
            return error
        except KeyboardInterrupt:
            if not self._attempts or self._known_runs():
                raise
            raise self._interrupted() from None
        elastic = self._context.config.run.elastic is not None
        lost = policy.was_lost(result=result.state, elastic=elastic, nodes_lost=result.nodes_lost)
        lost = lost and not self._was_deleted()
        self._note(began, run_id=result.run, lost=lost, reason=result.reason)
        return result

    def _note(self, began: float, *, run_id: str, lost: bool = True, reason: str) -> None:
        """Note how an attempt has ended."""
        seen, cost, took = self._meter.cluster, self._meter.read(), time.time() - began
        # Nodes that were never seen cost as much as those before them.
        spent = self._dollars_per_hour * took / 3600 if seen is None else cost.own_dollars if cost else 0.0
        self._dollars_per_hour = (seen.dollars_per_hour or 0.0) if seen is not None else self._dollars_per_hour
        if not self._attempts:
            # Where nothing ends a cluster, its time begins with the run.
            start = datetime.fromtimestamp(began, timezone.utc)
            if seen is not None and seen.ends:
                start = seen.costs_since or seen.created
            self._ends = start + timedelta(seconds=self._context.config.limits.max_run_duration)
        attempt = Attempt(run=run_id, lost=lost, reason=reason, seconds=took, dollars=spent or None)
        self._attempts = (*self._attempts, attempt)

    def _known_runs(self) -> tuple[str, ...]:
        """The runs of the cluster that is up."""
        record = self._context.state.load()
        return record.runs if record is not None else ()

    def _lacks_nodes(self) -> bool:
        """Whether nodes of the cluster are gone or do not run, and no command has deleted it meanwhile."""
        try:
            now = self._context.query()
            return not (now is not None and now.whole) and not self._was_deleted()
        except HvdcloudError:
            # What the provider does not say is not acted upon; the present error is raised.
            return False

    def _was_deleted(self) -> bool:
        """Whether `down` has deleted the cluster, from another machine too: what a user has deleted is not made again.
        Nodes that are lost leave the cluster's firewall rules or its network; `down` leaves nothing."""
        seen = self._meter.cluster
        if seen is None or "down" in self._context.state.journal.times(seen.id):
            return True
        now = self._context.provider.cluster(self._context.name)
        return now is None or now.id != seen.id

    def _left(self) -> Within:
        return policy.left(self._attempts, ends=self._ends, max_cost=self._context.config.limits.max_cost)

    def _source(self) -> str | None:
        """The newest run of the attempts of which the bucket has something."""
        kept = {*list_runs(self._context.bucket(), self._context.name)} if self._attempts else ()
        return next((attempt.run for attempt in reversed(self._attempts) if attempt.run in kept), None)

    # -- between two attempts ------------------------------------------------------------------------------------------

    def _try_again(self, options: RunOptions) -> RunResult | NodeError:
        """Save and delete what the lost cluster left, make the next one, and run there; as `_attempt`."""
        context, began, number = self._context, time.time(), len(self._attempts)
        try:
            self._clear()
            left, source = self._left(), self._source()
            what = f"continues run {source}" if source else "begins at the start: the bucket has no checkpoint"
            following = f"attempt {number + 1} of at most {context.config.run.retry + 1} {what}"
            money = "" if left.max_dollars is None else f"{dollars(left.max_dollars)} and "
            still = left.seconds(_now())
            context.console.say(f"{self._attempts[-1].ended(number)}; {following}; {money}{seconds(still)} left")
            wait = max(0.0, still - policy.LEAST_SECONDS)
            up(context, confirmed=True, wait=wait, command=self._command, within=left)
        except (KeyboardInterrupt, InterruptedByUserError):
            raise self._interrupted() from None
        except NodeError as error:
            # The new nodes did not come up, and nothing of them is left.
            self._note(began, run_id="", reason=error.message)
            return error
        except HvdcloudError as error:
            error.add_details(self._by_hand())
            raise
        return self._attempt(replace(options, resume=source or options.resume, fresh=options.fresh and source is None))

    def _clear(self, *, patient: bool = True) -> None:
        """Fetch what the newest cluster's nodes hold, and delete them.

        Args:
            patient: wait for nodes that still end their ranks, and for machines of the user's that boot again.

        Raises:
            CheckpointError: a node holds what is nowhere else, or does not say.  TeardownError: something is left.
            KeyboardInterrupt: Ctrl-C while it was deleted.
        """
        context, began, interrupted, last = self._context, time.time(), threading.Event(), self._attempts[-1]
        while True:
            cluster = None
            try:
                cluster = context.query()
                if cluster is not None and mirror_of(context, cluster) is None:
                    with awake(context, cluster):
                        pass  # Nodes that had stopped have uploaded what they held.
                _, deleted = pull_and_down(context, cluster, on_interrupt=interrupted.set)
                break
            except (CheckpointError, NodeError, UnseenError) as error:
                frozen = cluster is not None and any(node.state is NodeState.FROZEN for node in cluster.nodes)
                if frozen or not patient or time.time() >= began + PATIENCE_SECONDS:
                    message = f"run {last.run} is not tried again: {error.message}"
                    raise CheckpointError(message, hint=error.hint, details=error.details) from error
            time.sleep(PAUSE_SECONDS)
        spent = self._meter.close(at_least=deleted.dollars or 0.0) or last.dollars
        last = replace(last, dollars=spent, seconds=last.seconds + time.time() - began)
        self._attempts = (*self._attempts[:-1], last)
        if interrupted.is_set():
            raise KeyboardInterrupt

    def _interrupted(self) -> InterruptedByUserError:
        """After Ctrl-C: delete what exists. Returns the error that says so."""
        with uninterrupted():
            self._context.console.say("interrupted; first checkpoints are saved and nodes are deleted")
            self._clear(patient=False)
        message = f"{self._command} of {self._context.name} was interrupted between two attempts; no node of it is left"
        return InterruptedByUserError(message, hint=self._by_hand())

    def _by_hand(self) -> str:
        """The commands that continue the run."""
        name, source = f"--name {self._context.name}", self._source()
        again = f"hvdcloud up {name}, then hvdcloud run {name} --resume {source} continues from its checkpoints"
        return again if source else f"hvdcloud launch {name} starts again"


def _now() -> datetime:
    return datetime.now(timezone.utc)
