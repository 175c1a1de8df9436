"""`hvdcloud status --watch`: the status again and again, until Ctrl-C."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud.console import Console
from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.lifecycle.status import StatusResult, status

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context

Show = Callable[[Console, StatusResult], None]
"""How a status looks."""

EVERY_SECONDS = 2.0


def watch(context: Context, *, every: float | None, show: Show) -> None:
    """Show the status when it changes, and on a terminal each time; returns at Ctrl-C or when the cluster is gone.

    Args:
        every: seconds between two looks; None: two.
        show: how the status looks.

    Raises:
        UsageError: there is no such cluster to begin with.
    """
    seen: object = None
    try:
        while True:
            try:
                result = status(context)
            except UsageError:
                if seen is None:
                    raise
                context.console.answer(f"cluster {context.name} is gone")
                return
            except HvdcloudError as error:
                # A provider that does not answer once may answer the next time.
                if error.message != seen:
                    context.console.warn(error.message)
                seen = error.message
            else:
                seen = _show(context.console, result, seen=seen, show=show)
            time.sleep(EVERY_SECONDS if every is None else every)
    except KeyboardInterrupt:
        # That is how watching ends.
        return


def _show(console: Console, result: StatusResult, *, seen: object, show: Show) -> object:
    """Show what there is now if that is due; returns what of it lasts."""
    text = io.StringIO()
    show(Console(out=text), result)
    lines = text.getvalue().splitlines()
    lasting = lasting_part(result)
    if not console.redraw([*lines, "", "Ctrl-C ends this; the cluster stays"]) and lasting != seen:
        for line in [*([""] if seen is not None else []), f"{time.strftime('%H:%M:%S')}", *lines]:
            console.answer(line)
    return lasting


def lasting_part(result: StatusResult) -> StatusResult:
    """What does not change by the passing of time alone: without ages, and money that adds up."""
    cluster = replace(
        result.cluster,
        dollars_so_far=0.0,
        # The last digits of what it may come to follow the clock, too.
        worst_case_dollars=None if result.cluster.worst_case_dollars is None else 0.0,
    )
    runs = [replace(run, seconds=0.0) if run.state == "running" else run for run in result.runs]
    return replace(result, cluster=cluster, age_seconds=0.0, dollars_so_far=0.0, runs=runs)
