"""`run.retry`: after a loss of nodes the cluster is made again, and the run continues from its newest checkpoint.

The client that follows the run does it. First it writes into the journal that another attempt follows; then what only
the old nodes hold goes to the bucket, the old nodes are deleted, new ones are made within what is left of the limits,
and a run begins that resumes from the lost one. Killed at any of these, the next `up`, `run` or `launch` continues from
there, and `down` deletes what exists, which it finds by its labels as ever.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hvdcloud.checkpoints.manifest import file_name, list_runs, load_each
from hvdcloud.checkpoints.names import is_checkpoint
from hvdcloud.cluster.confirm_cost import Consent
from hvdcloud.cluster.cost import Meter
from hvdcloud.cluster.model import Within
from hvdcloud.errors import HvdcloudError, InterruptedByUserError, NodeError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.lost_cluster import LostCluster
from hvdcloud.lifecycle.silent_hosts import wait_for_hosts
from hvdcloud.lifecycle.up import UpResult, up
from hvdcloud.runs import retry as policy
from hvdcloud.runs.retry import Attempt, Cause, Left, Pending

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.lifecycle.run_model import RunResult
    from hvdcloud.lifecycle.run_options import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loss:
    """An attempt that another one may follow."""

    cause: Cause
    reason: str
    run: str = ""
    """Empty: it had not started."""
    began: float
    """Seconds since the epoch."""
    result: RunResult | None = None
    error: NodeError | None = None
    """Where there is no result: the head was lost, or the run could not start."""

    def give(self, attempts: tuple[Attempt, ...]) -> RunResult:
        """The end of the run, where no other attempt follows. Raises NodeError: there is no result."""
        if self.result is not None:
            return replace(self.result, attempts=attempts)
        assert self.error is not None
        self.error.add_details(*(attempt.ended(number) for number, attempt in enumerate(attempts, 1)))
        raise self.error


class _NotReadyError(Exception):
    """Nodes of the next attempt did not come up; nothing of them is left."""

    def __init__(self, cause: NodeError) -> None:
        super().__init__(cause.message)
        self.cause = cause


class Retries:
    """The attempts of one command's run; without `run.retry` there is one, as `up` and `run` make it.

    Args:
        command: what the user has typed: up, run or launch.
        meter: counts what all attempts cost together.
    """

    def __init__(self, context: Context, *, command: str, meter: Meter | None = None) -> None:
        self._context = context
        self._command = command
        self._meter = meter or Meter()
        self._lost = LostCluster(context, command=command, meter=self._meter)
        self._most = context.config.run.retry
        self._dollars_per_hour = 0.0
        """Of the cluster that was lost last."""
        self._pending: Pending | None = None
        """What is to be tried again; its cluster does not exist yet."""
        self._prepared: Pending | None = None
        """What is tried again; its cluster exists."""
        if self._most:
            self._pending = policy.pending(context.state.journal.entries(), now=time.time())
            for attempt in self._pending.attempts[:-1] if self._pending else ():
                self._meter.add_earlier(attempt.dollars or 0.0)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Those that were lost and followed by another one."""
        found = self._prepared or self._pending
        return found.attempts if found is not None else ()

    @property
    def runs(self) -> list[str]:
        """The runs of these attempts, oldest first; what they wrote is in the bucket."""
        return [attempt.run for attempt in self.attempts if attempt.run]

    def up(self, *, consent: Consent | None = None, checked: bool = False, wait: float = 0.0) -> UpResult:
        """`up`; where a killed command has left an attempt to be made, the cluster of that attempt.

        Raises as `up`; also CheckpointError: nodes of an earlier attempt hold what is nowhere else.
        """
        if self._pending is not None:
            self._say_continued(self._pending)
            try:
                return self._prepare(self._pending, wait=wait)
            except _NotReadyError as error:
                raise error.cause from None
        if self._command == "launch" and self._waits_for_room:
            wait = wait or self._context.config.limits.max_run_duration
        return up(self._context, consent=consent, checked=checked, wait=wait, command=self._command)

    def run(self, options: RunOptions) -> RunResult:
        """`run`, and again on a new cluster as often as `run.retry` allows. Raises as `run` and `up`."""
        from hvdcloud.lifecycle.run import run

        if not self._most:
            return run(self._context, options, meter=self._meter)
        if options.detach:
            self._context.console.warn("run.retry needs a client that follows the run: no one does with --detach")
            return run(self._context, options, meter=self._meter)
        if self._pending is not None:
            if options.fresh or options.resume:
                self._give_up()
            else:
                self._say_continued(self._pending)
        try:
            return self._until_done(options)
        except KeyboardInterrupt:
            # After the journal's line that another attempt follows, and before that is begun.
            if (pending := self._pending) is None:
                raise
            self._leave_nothing(pending)
            raise self._interrupted(pending) from None

    def _until_done(self, options: RunOptions) -> RunResult:
        while True:
            if self._pending is not None:
                began = time.time()
                try:
                    self._prepare(self._pending)
                except _NotReadyError as error:
                    lost = _Loss(cause=Cause.LOST, reason=error.cause.message, began=began, error=error.cause)
                    if not self._try_again(options, lost):
                        raise error.cause from None
                    continue
            loss = self._attempt(options)
            if not isinstance(loss, _Loss):
                return loss
            if not self._try_again(options, loss):
                return loss.give((*self.attempts, self._ended(loss)))

    # -- one attempt ---------------------------------------------------------------------------------------------------

    def _attempt(self, options: RunOptions) -> RunResult | _Loss:
        """One run. Raises as `run`."""
        from hvdcloud.lifecycle.run import run

        began = time.time()
        known = self._known_runs()
        try:
            result = run(self._context, self._resumed(options), meter=self._meter)
        except NodeError as error:
            started = [run_id for run_id in self._known_runs() if run_id not in known]
            # What a cluster lacked before this command began is the user's to bring back.
            ours = started or self._prepared is not None or self._command == "launch"
            if not ours or not self._lost.lacks_nodes():
                raise
            run_id = started[-1] if started else ""
            return _Loss(cause=Cause.LOST, reason=error.message, run=run_id, began=began, error=error)
        except KeyboardInterrupt:
            if self._prepared is None or self._known_runs():
                raise
            self._leave_nothing(self._prepared)
            raise self._interrupted(self._prepared) from None
        cause = policy.cause_of(
            result=result.state,
            elastic=self._context.config.run.elastic is not None,
            nodes_lost=result.nodes_lost,
            nodes_preempted=result.nodes_preempted,
        )
        if cause is None or self._lost.was_deleted(cause):
            last = self._ended(_Loss(cause=Cause.LOST, reason=result.reason, run=result.run, began=began))
            last = replace(last, result=result.state, cause=cause.value if cause else None)
            return replace(result, attempts=(*self.attempts, last))
        return _Loss(cause=cause, reason=result.reason, run=result.run, began=began, result=result)

    def _known_runs(self) -> tuple[str, ...]:
        """The runs of the cluster that is up."""
        record = self._context.state.load()
        return record.runs if record is not None else ()

    def _resumed(self, options: RunOptions) -> RunOptions:
        """The options of the next attempt."""
        if (prepared := self._prepared) is None:
            return options
        source = self._source(prepared)
        return replace(
            options,
            command=options.command or prepared.command,
            ranks=options.ranks or prepared.ranks,
            resume=source,
            fresh=source is None and options.fresh,
        )

    # -- between two attempts ------------------------------------------------------------------------------------------

    def _try_again(self, options: RunOptions, loss: _Loss) -> bool:
        """Whether another attempt follows; then the journal says so before anything else is done."""
        seen = self._meter.cluster
        self._dollars_per_hour = seen.dollars_per_hour if seen is not None else self._dollars_per_hour
        attempts = (*self.attempts, self._ended(loss))
        ends = self.ends(loss)
        left = self._left(attempts, ends)
        why_not = policy.refusal(
            attempts=len(attempts),
            most=self._most,
            left=left,
            dollars_per_hour=self._dollars_per_hour,
        )
        if why_not is not None:
            self._context.console.say(f"{attempts[-1].ended(len(attempts))}; it is not tried again: {why_not}")
            return False
        earlier = self._prepared
        self._pending = Pending(
            attempts=attempts,
            ends=ends,
            command=tuple(options.command) or (earlier.command if earlier else ()),
            ranks=options.ranks or (earlier.ranks if earlier else None),
            resume=earlier.resume if earlier else options.resume,
        )
        self._prepared = None
        self._lost.note(self._pending)
        return True

    def ends(self, loss: _Loss) -> float:
        """The deadline of all attempts: when the first cluster had to end, in seconds since the epoch."""
        if (found := self._prepared or self._pending) is not None:
            return found.ends
        seen, limit = self._meter.cluster, self._context.config.limits.max_run_duration
        # Where nothing ends a cluster, its time begins with the run.
        began = (seen.costs_since or seen.created).timestamp() if seen is not None and seen.ends else loss.began
        return began + limit

    def _ended(self, loss: _Loss) -> Attempt:
        cost = self._meter.read()
        spent = None if cost is None else cost.own_dollars
        if not loss.run and self._meter.cluster is None:
            # It was never seen; its nodes cost as much as those before them.
            spent = self._dollars_per_hour * (time.time() - loss.began) / 3600 or None
        seen = self._meter.cluster
        return Attempt(
            run=loss.run,
            cluster_id=seen.id if seen is not None else "",
            result="lost",
            cause=loss.cause.value,
            reason=loss.reason,
            seconds=time.time() - loss.began,
            dollars=spent,
            resumed_from=self._source(self._prepared) if self._prepared is not None else None,
        )

    def _prepare(self, pending: Pending, *, wait: float = 0.0) -> UpResult:
        """The cluster of the next attempt.

        Raises:
            InterruptedByUserError: Ctrl-C; nothing is left.
            _NotReadyError: its nodes did not come up.
            HvdcloudError: it cannot be made; the journal keeps what another command may continue.
        """
        try:
            left = self._left(pending.attempts, pending.ends)
            wait_for_hosts(self._context, pending.clusters, seconds=left.seconds - policy.LEAST_SECONDS)
            pending = self._pending = self._lost.clear(pending)
            left = self._left(pending.attempts, pending.ends)
            self._say_next(pending, left)
            made = self._make(pending, left, wait=wait)
        except (KeyboardInterrupt, InterruptedByUserError):
            self._leave_nothing(pending)
            raise self._interrupted(pending) from None
        except HvdcloudError as error:
            error.add_details(
                f"the run is not given up: hvdcloud run --name {self._context.name} continues it, hvdcloud down "
                f"--name {self._context.name} ends that"
            )
            raise
        self._pending, self._prepared = None, pending
        return made

    def _make(self, pending: Pending, left: Left, *, wait: float) -> UpResult:
        limited = self._context.config.limits.max_cost is not None
        ends = datetime.fromtimestamp(pending.ends, timezone.utc)
        try:
            return up(
                self._context,
                consent=Consent(given=True),
                wait=max(wait, left.seconds - policy.LEAST_SECONDS) if self._waits_for_room else wait,
                command=self._command,
                within=Within(ends=ends, max_dollars=left.dollars if limited else None),
            )
        except NodeError as error:
            raise _NotReadyError(error) from error

    def _leave_nothing(self, pending: Pending) -> None:
        """After Ctrl-C: delete what exists of the lost cluster, and of the next one, whose run has not begun."""
        with uninterrupted():
            self._lost.delete_all(pending)
            self._give_up()

    def _interrupted(self, pending: Pending) -> InterruptedByUserError:
        name = self._context.name
        kept = f"; the checkpoints of run {pending.sources[0]} are in the bucket" if pending.sources else ""
        hint = f"hvdcloud launch --name {name} starts again"
        if pending.sources:
            run_id = pending.sources[0]
            hint = f"hvdcloud up --name {name}, then hvdcloud run --name {name} --resume {run_id} continues from them"
        return InterruptedByUserError(
            f"{self._command} of {name} was interrupted between two attempts; no node of it is left{kept}", hint=hint
        )

    def _give_up(self) -> None:
        """Nothing is tried again; the journal says so."""
        self._pending = None
        self._context.state.journal.record(policy.ENDED)

    def _left(self, attempts: tuple[Attempt, ...], ends: float) -> Left:
        return policy.left(attempts, ends=ends, max_cost=self._context.config.limits.max_cost, now=time.time())

    @property
    def _waits_for_room(self) -> bool:
        return self._most > 0

    def _source(self, pending: Pending) -> str | None:
        """The newest of its runs of which the bucket has something; None: it has nothing."""
        kept = set(list_runs(self._context.bucket(), self._context.name))
        return next((run_id for run_id in pending.sources if run_id in kept), None)

    # -- what is said --------------------------------------------------------------------------------------------------

    def _say_continued(self, pending: Pending) -> None:
        number = len(pending.attempts)
        self._context.console.say(
            f"an earlier command was interrupted between attempts {number} and {number + 1} of a run; "
            f"{self._command} continues (hvdcloud down --name {self._context.name} gives it up)"
        )

    def _say_next(self, pending: Pending, left: Left) -> None:
        number = len(pending.attempts)
        source = self._source(pending)
        what = f"resumes from {self._newest(source)}" if source else "begins at the start: the bucket has no checkpoint"
        self._context.console.say(
            f"{pending.lost.ended(number)}; attempt {number + 1} of at most {self._most + 1} {what}; {left.text}"
        )

    def _newest(self, run_id: str) -> str:
        """`epoch-11.pt of run 20261121-…`, the newest checkpoint that it wrote itself."""
        good, _ = load_each(self._context.bucket(), cluster=self._context.name, run=run_id)
        files = [entry for manifest in good for entry in manifest.files]
        if not files:
            return f"run {run_id}"
        newest = max(files, key=lambda entry: (is_checkpoint(entry.name), entry.modified))
        return f"{file_name(newest.name)} of run {run_id}"
