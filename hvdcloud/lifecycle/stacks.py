"""`hvdcloud stacks`: where every rank of a run is, now or when it was stuck."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import HvdcloudError, NodeError
from hvdcloud.json_values import mappings
from hvdcloud.lifecycle.logs import find_run
from hvdcloud.runs.stacks import Group, RankStacks, grouped

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.remote.ssh import Session

ANSWER_SECONDS = 180.0
"""py-spy reads the symbols of a framework first, and a node may have many ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StacksResult:
    """The stacks of a run's ranks: by place, and every thread of each."""

    run: str
    groups: Sequence[Group]
    ranks: Sequence[RankStacks]


def stacks(context: Context, run_id: str | None) -> StacksResult:
    """Ask every node for the stacks of a run's ranks; of one that was stuck, the head has them. `run_id`: None: the
    newest.

    Raises:
        UsageError: no such run.
        NodeError: no node has stacks of it.
    """
    cluster = context.cluster()
    run = find_run(context, cluster, run_id).run

    def take(session: Session) -> dict[str, Any]:
        return session.call(f"stacks {run}", timeout=ANSWER_SECONDS)

    with context.console.waiting("stacks", "taking the stacks of all ranks"):
        answers = context.fleet(cluster).each_outcome(take)
    for failure in (answer for answer in answers if isinstance(answer, HvdcloudError)):
        context.console.warn(failure.message)
    found = [rank for answer in answers if isinstance(answer, dict) for rank in mappings(answer.get("ranks"))]
    if not (ranks := sorted(RankStacks.all_from_json(found), key=lambda each: each.rank)):
        raise NodeError(f"no node has stacks of run {run}: its ranks start, or have ended", hint=f"hvdcloud logs {run}")
    return StacksResult(run=run, groups=grouped(ranks), ranks=ranks)
