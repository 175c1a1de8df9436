"""`hvdcloud status`: the cluster by its labels and its runs as the head reports them; once, or until Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.lifecycle.logs import read_log
from hvdcloud.lifecycle.run_result import RunResult, result_of, result_of_followed

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.context import Context


EVERY_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusResult:
    """One cluster now."""

    cluster: Cluster
    whole: bool
    runs: Sequence[RunResult]
    runs_unknown: str
    """Why the runs could not be asked for; empty if they could."""
    age_seconds: float
    dollars_so_far: float | None
    """What everything of it that exists has cost, by the price table."""


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
        runs = [result_of(cluster.name, state) for state in states]
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
    )


def watch(context: Context, show: Callable[[Console, StatusResult], None]) -> None:
    """Show the status every two seconds, on a terminal in one place, until Ctrl-C or until the cluster is gone.

    Raises UsageError: there is no such cluster to begin with.
    """
    console, seen = context.console, False
    # This ends the command.
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            try:
                result = status(context)
            except UsageError:
                if not seen:
                    raise
                console.answer(f"cluster {context.name} is gone")
                return
            except HvdcloudError as error:
                # A provider that does not answer once may answer the next time.
                console.warn(error.message)
            else:
                seen = True
                console.clear()
                show(console, result)
            time.sleep(EVERY_SECONDS)
