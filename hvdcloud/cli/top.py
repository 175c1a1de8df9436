"""`top`: a live screen, and its keys."""

from __future__ import annotations

import os

import typer

from hvdcloud.cli.app import Invocation
from hvdcloud.console import is_dumb
from hvdcloud.errors import UsageError


def top(context: typer.Context) -> None:
    """Show nodes, GPUs, the run and its log on a live screen.

    Keys: `q` quits, `l` shows or hides the log. Arrows, page keys, Home, End and the mouse wheel scroll the nodes or,
    after `tab`, the log. Quitting changes nothing.

    \b
    Example:
      $ hvdcloud top
    """
    invocation: Invocation = context.obj
    console = invocation.console
    instead = "hvdcloud status --watch, or hvdcloud status --json for programs"
    if not console.is_screen:
        raise UsageError("top needs a terminal", hint=instead)
    if is_dumb():
        raise UsageError(f"top cannot draw on this terminal (TERM={os.environ.get('TERM')})", hint=instead)
    from hvdcloud.cli.top_app import TopApp, run_until_quit
    from hvdcloud.lifecycle.top import Observer

    with invocation.context() as experiment:
        cluster = experiment.cluster()
        # Progress, such as that a request is repeated, would be printed into the screen.
        console.quiet = True
        with Observer(experiment, cluster) as observer:
            run_until_quit(TopApp(observer.view))
    console.answer(f"cluster {cluster.name} stays as it is; hvdcloud down deletes it")
