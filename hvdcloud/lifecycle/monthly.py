"""`limits.monthly_cost`, and the records in the bucket that it is worked out from: one for each cluster that costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hvdcloud.cluster.bills import Bill, Month, bill_name, bill_names, end_of, month_bounds, month_sum, read_bill
from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.lifecycle.context import BRIEF_RETRY_SECONDS
from hvdcloud.units import counted, dollars

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster, ClusterSpec, Plan
    from hvdcloud.cluster.spending import Segment
    from hvdcloud.lifecycle.context import Context

LATEST_BILLS = 20
"""How many records of one name get an end when nothing of that name exists: the newest ones."""


def check_month(context: Context, plan: Plan) -> None:
    """Make sure that `limits.monthly_cost` allows a plan at worst, beside what this month's other clusters cost.

    Raises:
        UsageError: it does not.
        HvdcloudError: the bucket or the provider cannot be asked, so that nobody knows.
    """
    limit = context.config.limits.monthly_cost
    if limit is None or not plan.dollars_per_hour:
        return
    month = _month(context, without=plan.spec.id)
    if month.dollars + plan.worst_case_dollars <= limit:
        return
    alive = f", {dollars(month.of_living)} of it at worst for those that exist" if month.of_living else ""
    raise UsageError(
        f"limits.monthly_cost of {dollars(limit)} does not allow cluster {plan.spec.name}, which costs "
        f"{dollars(plan.worst_case_dollars)} at worst: {counted(month.clusters, 'other cluster')} of {month.month} "
        f"cost {dollars(month.dollars)}{alive} (an estimate, by the records in {context.bucket_url})",
        hint="raise limits.monthly_cost, or lower limits.max_cost or limits.max_run_duration; hvdcloud history shows "
        "the runs",
    )


def _month(context: Context, *, without: str) -> Month:
    """This month's sum, without one cluster."""
    from hvdcloud.lifecycle.history import bills_of_month, newest_runs

    now = datetime.now(timezone.utc)
    try:
        with context.console.waiting(context.name, "adding up what this month has cost"):
            bucket = context.bucket()
            bills = [bill for bill in bills_of_month(bucket, now=now) if bill.id != without]
            runs = newest_runs(bucket, now=now, warn=context.console.warn)
    except HvdcloudError as error:
        raise type(error)(
            f"limits.monthly_cost cannot be checked: {error.message}",
            hint=f"{error.hint}; without limits.monthly_cost nothing is added up",
            details=error.details,
        ) from error
    listing = context.provider.list()
    if listing.unseen:
        raise listing.unseen_error()
    # On Compute Engine only the VMs say which bucket is theirs.
    own, known = {context.bucket_url, ""}, {bill.id for bill in bills}
    others = [each for each in listing.clusters if each.id != without and (each.bucket in own or each.id in known)]
    runs = [run for run in runs if run.id != without]
    return month_sum(bills, now=now, living={each.id: each for each in others}, runs=runs)


def open_bill(context: Context, plan: Plan) -> None:
    """Write down what a cluster may cost, before anything of it is made.

    Raises:
        HvdcloudError: it cannot be written, and `limits.monthly_cost` needs it.
    """
    spec = plan.spec
    if not plan.dollars_per_hour:
        return
    bill = Bill(
        cluster=spec.name,
        id=spec.id,
        owner=spec.owner,
        created=float(int(spec.created.timestamp())),
        ends=time.time() + plan.seconds if plan.seconds is not None else None,
        nodes=spec.nodes,
        dollars_per_hour=plan.dollars_per_hour,
        worst_case_dollars=plan.worst_case_dollars,
    )
    try:
        context.bucket().write(bill.name, bill.to_json())
    except HvdcloudError as error:
        _not_recorded(context, error)


def grow_bill(context: Context, cluster: Cluster, plan: Plan) -> None:
    """Write down what a cluster may cost with more nodes, before they are made; raises as `open_bill`."""
    if not plan.dollars_per_hour:
        return
    name = bill_name(cluster)
    try:
        bucket = context.bucket(cluster)
        if (bill := read_bill(bucket, name)) is not None:
            worst = max(bill.worst_case_dollars, plan.worst_case_dollars)
            per_hour, nodes = plan.dollars_per_hour, plan.spec.nodes
            bill = replace(bill, nodes=nodes, dollars_per_hour=per_hour, worst_case_dollars=worst)
            bucket.write(name, bill.to_json())
    except HvdcloudError as error:
        _not_recorded(context, error)


def _not_recorded(context: Context, error: HvdcloudError) -> None:
    """Warn of a record that cannot be written; raises `error` where `limits.monthly_cost` needs it."""
    if context.config.limits.monthly_cost is not None:
        raise error
    context.console.warn(f"what {context.name} costs is not recorded: {error.message}")


def close_bill(
    context: Context,
    cluster: Cluster | ClusterSpec,
    *,
    dollars: float | None,
    spent: Sequence[Segment] = (),
    ended: float | None = None,
) -> None:
    """Write down what a cluster that is gone has cost; where that fails, it counts as if nobody had seen its end.

    Args:
        dollars: None: not known.
        ended: seconds since the epoch; None: now.
    """
    if context.platform.costs_money:
        at = time.time() if ended is None else ended
        _close(context, cluster, [bill_name(cluster)], dollars, spent, ended=at)


def close_bills_of_gone(context: Context) -> None:
    """Write down the end of clusters of this name, of which nothing exists: their nodes have ended themselves."""
    if not context.platform.costs_money:
        return
    try:
        bucket = context.bucket(retry_seconds=BRIEF_RETRY_SECONDS)
        names = bill_names(bucket, since=month_bounds(datetime.now(timezone.utc))[0], cluster=context.name)
    except HvdcloudError:
        # They count until their last run or their provider ended them.
        return
    _close(context, None, names[-LATEST_BILLS:], None, (), ended=time.time())


def _close(
    context: Context,
    cluster: Cluster | ClusterSpec | None,
    names: Sequence[str],
    dollars: float | None,
    spent: Sequence[Segment],
    *,
    ended: float,
) -> None:
    from hvdcloud.lifecycle.history import last_run

    try:
        bucket = context.bucket(cluster, retry_seconds=BRIEF_RETRY_SECONDS)
        for name in names:
            bill = read_bill(bucket, name)
            if bill is not None and bill.ended is None:
                end, cost = ended, dollars
                if cost is None:
                    last = last_run(bucket, bill.cluster, bill.id, warn=context.console.warn)
                    end, cost = end_of(bill, last, now=ended)
                bucket.write(name, replace(bill, ended=end, dollars=cost).to_json(spent))
    except HvdcloudError as error:
        context.console.warn(f"what {context.name} has cost is not recorded: {error.message}")
