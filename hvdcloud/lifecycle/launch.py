"""`hvdcloud launch`: the whole life of one experiment."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.cluster.cost import Cost, Meter
from hvdcloud.errors import CheckpointError, HvdcloudError, InterruptedByUserError
from hvdcloud.interrupts import uninterrupted
from hvdcloud.lifecycle.down import DownResult, down, pull_and_down
from hvdcloud.lifecycle.pull import PullResult, check_target
from hvdcloud.lifecycle.retry import Retries
from hvdcloud.lifecycle.run_spec import check_planned
from hvdcloud.lifecycle.up import UpResult, check_project, undone, up

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.lifecycle.run_result import RunResult
    from hvdcloud.lifecycle.run_spec import RunOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """The steps of a launch; nothing is left of its cluster."""

    up: UpResult
    run: RunResult
    pull: PullResult
    down: DownResult
    seconds: float
    cost: Cost | None
    """None: the cluster costs nothing, or the price is not known."""


def launch(context: Context, options: RunOptions, *, confirmed: bool = False, wait: float = 0.0) -> LaunchResult:
    """Image if needed, up, run, pull, down. `confirmed`, `wait`: as for `up`.

    A job that fails is pulled and torn down all the same; its failure is in the result. Ctrl-C before the run rolls
    back; during the run it detaches, and the nodes end themselves when the run has ended.

    Raises:
        HvdcloudError: of the step that failed. After `up`, only checkpoints that could not be saved keep the nodes.
    """
    started = time.monotonic()
    # Before anything is built or costs anything.
    check_project(context, options.command, quiet=True)
    check_target(context)
    if options.ranks:
        check_planned(context.config, options.ranks)
    cluster: UpResult | None = None
    meter = Meter()
    retries = Retries(context, command="launch", meter=meter)
    try:
        if context.config.run.retry:
            wait = wait or context.config.limits.max_run_duration
        cluster = up(context, confirmed=confirmed, wait=wait, command="launch")
        result = retries.run(options)
    except KeyboardInterrupt:
        if cluster is None or not cluster.created:
            raise
        raise _given_up(context) from None
    except HvdcloudError as error:
        if cluster is not None and not isinstance(error, InterruptedByUserError):
            _after_a_lost_run(context, error, meter)
        raise
    pulled, deleted, cost = finish(context, result, meter)
    return LaunchResult(
        up=cluster, run=result, pull=pulled, down=deleted, seconds=time.monotonic() - started, cost=cost
    )


def finish(context: Context, result: RunResult, meter: Meter) -> tuple[PullResult, DownResult, Cost | None]:
    """`pull_and_down` after a run; raises as that, also InterruptedByUserError: Ctrl-C, before nodes were deleted."""
    try:
        cluster = context.provider.cluster(context.name)
        if cluster is not None:
            meter.observe(cluster)
        checked = [result.run] if result.checkpoints_complete else ()
        return *pull_and_down(context, cluster, last=result.run, checked=checked), meter.read()
    except KeyboardInterrupt:
        name = f"--name {context.name}"
        raise InterruptedByUserError(
            f"interrupted after run {result.run} had ended; its nodes may still exist",
            hint=f"hvdcloud pull {name}, then hvdcloud down {name}",
        ) from None


def _given_up(context: Context) -> InterruptedByUserError:
    """Delete the cluster after Ctrl-C before its run began; returns the error that says what is left."""
    name = f"--name {context.name}"
    context.console.say(f"interrupted; deleting the nodes of {context.name}")
    try:
        with uninterrupted():
            down(context)
    except CheckpointError as refused:
        return InterruptedByUserError(
            f"launch of {context.name} was interrupted while its run was starting; {refused.message}",
            hint=f"hvdcloud logs -f {name} follows its run; hvdcloud stop {name} ends it",
        )
    return undone("launch", context.name)


def _after_a_lost_run(context: Context, error: HvdcloudError, meter: Meter) -> None:
    """Pull the checkpoints and delete the nodes after a run that could not be started or was lost."""
    try:
        cluster = context.provider.cluster(context.name)
        if cluster is not None:
            pull_and_down(context, cluster)
            if cost := meter.read():
                context.console.say(cost.line)
    except HvdcloudError as second:
        error.add_details(second.message, second.details)
        error.hint = second.hint
