"""`hvdcloud stacks`: where every rank of a run is, now or when it was stuck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.checkpoints.manifest import list_runs, stacks_name
from hvdcloud.errors import HvdcloudError, NodeError, UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.lifecycle.logs import find_run
from hvdcloud.runs.reports import instant
from hvdcloud.runs.stacks import Group, RankStacks, grouped
from hvdcloud.storage.base import ObjectMissingError, TooLargeError

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.remote.ssh import Session

ANSWER_SECONDS = 180.0
"""py-spy reads the symbols of a framework first, and a node may have many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksResult:
    """The stacks of a run's ranks."""

    run: str
    cluster: str
    taken: float | None
    """When they were taken because the run was stuck, in seconds since the epoch; None: now."""
    groups: Sequence[Group]
    ranks: Sequence[RankStacks]
    failed: Sequence[str] = ()
    """Nodes whose ranks are missing, and why."""


def stacks(context: Context, run_id: str | None) -> StacksResult:
    """Take the stacks of all ranks of a run, on all nodes at once; of one that was stuck, those that were taken then.

    Args:
        run_id: None: the newest.

    Raises:
        UsageError: no such run, or it has ended and was not stuck.
        NodeError: no node answers, or none has ranks.
    """
    found = context.find()
    if found is None or found.is_headless:
        return _kept(context, found, run_id)
    state = find_run(context, found, run_id)
    if state.done:
        answer = context.fleet(found).head.call(f"stacks {state.run}") if state.stuck is not None else {}
        return _of_ended(context, state.run, answer)

    def take(session: Session) -> dict[str, Any]:
        return session.call(f"stacks {state.run}", timeout=ANSWER_SECONDS)

    with context.console.waiting("stacks", "taking the stacks of all ranks"):
        answers = context.fleet(found).each_outcome(take)
    failed = [answer for answer in answers if isinstance(answer, HvdcloudError)]
    if failed and len(failed) == len(answers):
        raise failed[0]
    ranks = [rank for answer in answers if isinstance(answer, dict) for rank in _ranks(answer)]
    if not ranks:
        raise NodeError(
            f"run {state.run} has no ranks at this moment: they start, or end",
            hint=f"hvdcloud logs -f {state.run} shows how far it is",
        )
    ranks.sort(key=lambda each: each.rank)
    return StacksResult(
        run=state.run,
        cluster=context.name,
        taken=None,
        groups=grouped(ranks),
        ranks=ranks,
        failed=[error.message for error in failed],
    )


def _ranks(answer: dict[str, Any]) -> list[RankStacks]:
    return RankStacks.all_from_json(answer.get("ranks"))


def _of_ended(context: Context, run: str, answer: dict[str, Any]) -> StacksResult:
    if not (ranks := _ranks(answer)):
        raise UsageError(
            f"run {run} has ended, and its ranks' stacks were not taken: it was not stuck",
            hint=f"hvdcloud logs {run} shows its output",
        )
    taken = instant(answer.get("t"))
    return StacksResult(run=run, cluster=context.name, taken=taken or 0.0, groups=grouped(ranks), ranks=ranks)


def _kept(context: Context, cluster: Cluster | None, run_id: str | None) -> StacksResult:
    """The stacks of a run whose nodes are gone, from the bucket."""
    bucket = context.bucket(cluster)
    runs = list_runs(bucket, context.name, suffix=cluster.id if cluster is not None else None)
    wanted = [run for run in runs if run_id in (None, run)]
    if not wanted:
        context.cluster()  # Raises where there is none.
        raise UsageError(
            f"cluster {context.name} has no run {run_id}" if run_id else f"cluster {context.name} has had no run yet",
            hint="hvdcloud status shows its runs",
        )
    try:
        answer = parse_object(bucket.read(stacks_name(context.name, wanted[-1])))
    except (ObjectMissingError, TooLargeError):
        answer = None
    return _of_ended(context, wanted[-1], answer or {})
