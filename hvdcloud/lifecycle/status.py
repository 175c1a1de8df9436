"""`hvdcloud status`: the cluster by its labels and its runs as the head reports them; once, or until Ctrl-C."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud.console import Console, Draw
from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.lifecycle.logs import read_log
from hvdcloud.lifecycle.run_model import RunResult, result_of, result_of_followed

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.runs.data import RunData


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """One cluster now."""

    cluster: Cluster
    whole: bool
    runs: Sequence[RunResult]
    runs_unknown: str
    """Why the runs could not be asked for; empty if they could."""
    age_seconds: float
    dollars_so_far: float
    """What everything of it that exists has cost, by the price table."""
    nodes_gone: int
    """Preempted or deleted; what they had cost is not counted."""


def status(context: Context) -> StatusResult:
    """The cluster and its runs; raises UsageError if there is none of this name."""
    cluster = context.cluster()
    if not cluster.bucket:
        # On Compute Engine only the VMs know it, and they are gone.
        cluster = replace(cluster, bucket=context.bucket_url)
    if cluster.unseen:
        context.console.warn(f"{', '.join(cluster.unseen)} did not answer; what exists there is not shown")
    runs: list[RunResult] = []
    unknown = ""
    try:
        states = context.run_states(cluster)
        runs = [_so_far(context, cluster, result_of(cluster.name, state)) for state in states]
        if states and states[-1].result == "failed":
            runs[-1] = result_of_followed(cluster.name, read_log(context, cluster, states[-1]))
    except HvdcloudError as error:
        unknown = error.message
    return StatusResult(
        cluster=cluster,
        whole=cluster.whole,
        runs=runs,
        runs_unknown=unknown,
        age_seconds=time.time() - cluster.created.timestamp(),
        dollars_so_far=cluster.dollars_so_far,
        nodes_gone=max(0, cluster.expected_nodes - len(cluster.nodes)),
    )


def _so_far(context: Context, cluster: Cluster, run: RunResult) -> RunResult:
    """The run with the files that it has in the bucket before its end, if that is a folder of this machine.

    The head counts them at the end; to list a bucket elsewhere would take longer than all the rest.
    """
    from hvdcloud.checkpoints.manifest import load_each

    if run.state != "running" or not cluster.bucket.startswith("file://"):
        return run
    # An agent may be writing one; the next look counts it.
    with contextlib.suppress(HvdcloudError):
        manifests, _ = load_each(context.bucket(cluster), cluster=cluster.name, run=run.run)
        run = replace(run, checkpoint_files=sum(len(manifest.files) for manifest in manifests))
    return run


Show = Callable[[Console, StatusResult], None]
"""Renders a status."""
EVERY_SECONDS = 2.0


def watch(context: Context, *, every: float | None, show: Show) -> None:
    """Show the status when it changes, and on a terminal each time; returns at Ctrl-C or when the cluster is gone.

    Args:
        every: seconds between two requests; None: EVERY_SECONDS.

    Raises:
        UsageError: there is no such cluster to begin with.
    """
    # This ends the command.
    with contextlib.suppress(KeyboardInterrupt):
        with context.console.redrawing() as draw:
            _watch_until_gone(context, every=EVERY_SECONDS if every is None else every, show=show, draw=draw)
        context.console.answer(f"cluster {context.name} is gone")


def _watch_until_gone(context: Context, *, every: float, show: Show, draw: Draw | None) -> None:
    seen: object = None
    lines: list[str] = []
    while True:
        try:
            result = status(context)
        except UsageError:
            if seen is None:
                raise
            return
        except HvdcloudError as error:
            # A provider that does not answer once may answer the next time.
            if draw is not None:
                draw([*lines, "", f"warning: {error.message}"])
            elif error.message != seen:
                context.console.warn(error.message)
            seen = error.message
        else:
            text = io.StringIO()
            show(Console(out=text), result)
            lines = text.getvalue().splitlines()
            lasting = lasting_part(result)
            if draw is not None:
                draw([*lines, "", "Ctrl-C ends this; the cluster stays"])
            elif lasting != seen:
                for line in [*([""] if seen is not None else []), f"{time.strftime('%H:%M:%S')}", *lines]:
                    context.console.answer(line)
            seen = lasting
        time.sleep(every)


def lasting_part(result: StatusResult) -> StatusResult:
    """The status without what changes as time passes: ages, bytes that arrive, and money that adds up."""
    # The last digits of what it may come to follow the clock, too.
    worst = None if result.cluster.worst_case_dollars is None else 0.0
    cluster = replace(result.cluster, dollars_so_far=0.0, worst_case_dollars=worst)
    runs = [
        replace(run, seconds=0.0, data=_lasting_data(run), waits=(), slow_ranks=None) if run.state == "running" else run
        for run in result.runs
    ]
    return replace(result, cluster=cluster, age_seconds=0.0, dollars_so_far=0.0, runs=runs)


def _lasting_data(run: RunResult) -> RunData | None:
    """The phases alone."""
    if run.data is None:
        return None
    return replace(run.data, nodes=[replace(each, bytes=0, files=0, seconds=None) for each in run.data.nodes])
