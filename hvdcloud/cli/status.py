"""The commands status and top, and how a cluster and its runs are shown."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation
from hvdcloud.console import is_dumb
from hvdcloud.errors import UsageError
from hvdcloud.units import counted, dollars, seconds

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster, Node
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.run_result import RunResult
    from hvdcloud.lifecycle.status import StatusResult


def status(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
) -> None:
    """Show the cluster's nodes, runs and cost.

    \b
    Example:
      $ hvdcloud status
      $ hvdcloud status --watch
      $ hvdcloud status --json | jq .result.cluster.worst_case_dollars
    """
    from hvdcloud.lifecycle.status import status as read_status
    from hvdcloud.lifecycle.status import watch as keep_watching

    invocation: Invocation = context.obj
    if watch and invocation.console.as_json:
        raise UsageError("--watch has no end, and --json is one document", hint="hvdcloud status --json")
    with invocation.context() as experiment:
        if watch:
            keep_watching(experiment, show_status)
            return
        invocation.result = result = read_status(experiment)
        show_status(invocation.console, result)


def show_status(console: Console, result: StatusResult) -> None:
    """Nodes, then runs."""
    cluster = result.cluster
    whole = "" if result.whole else f" (NOT WHOLE: {cluster.expected_nodes} expected)"
    if cluster.has_stopped:
        whole = "; its nodes have stopped (hvdcloud pull, then hvdcloud down)"
    console.answer(
        f"cluster {cluster.name} on {cluster.provider}, {seconds(result.age_seconds)} old, "
        f"made by {cluster.owner}{whole}"
    )
    console.table(["NODE", "STATE", "SSH"], [[node.name, node.state.value, _reach(node)] for node in cluster.nodes])
    if result.runs_unknown:
        console.answer(f"runs: unknown: {result.runs_unknown}")
    elif result.runs:
        console.table(
            ["RUN", "STATE", "TIME", "CHECKPOINTS"],
            [[entry.run, entry.state, seconds(entry.seconds), entry.checkpoint_files] for entry in result.runs],
        )
        newest = result.runs[-1]
        if newest.state not in ("running", "succeeded") and newest.reason:
            console.answer(f"run {newest.run} {newest.state}: {newest.reason}")
        _data(console, newest)
        _elastic(console, newest)
        if newest.slow_ranks is not None:
            console.answer(newest.slow_ranks.text)
    console.answer(f"checkpoints: {cluster.bucket}")
    left = " of the nodes that are left" if len(cluster.nodes) < cluster.expected_nodes else ""
    console.answer(f"cost so far{left}: {dollars(result.dollars_so_far)}{_at_worst(cluster)}")
    for note in cluster.cost_notes:
        console.answer(f"  {note}")


def _data(console: Console, run: RunResult) -> None:
    """What the nodes have of the data of a run that waits for it."""
    from hvdcloud.runs.data_progress import progress

    waiting = [each for each in run.data.nodes if not each.ready] if run.data is not None else []
    if run.state != "running" or run.data is None or run.data.seconds is not None or not waiting:
        return
    console.answer(f"run {run.run} waits for the data of {counted(len(waiting), 'node')}")
    console.table(["NODE", "DATA"], [[each.node, progress(each)] for each in run.data.nodes])


def _elastic(console: Console, run: RunResult) -> None:
    """The members of an elastic run that is running; nothing for other runs."""
    from hvdcloud.runs.state import ranks_present

    if run.state != "running" or not run.members:
        return
    said = f"no rank of run {run.run} trains: it waits for nodes" if run.world == 0 else f"run {run.run} continues"
    if run.world:
        said += f" with {ranks_present(ranks=run.ranks, now=run.world)}"
    if run.restarts:
        said += f"; its ranks were started again {counted(run.restarts, 'time')}"
    console.answer(said)
    rows = []
    for member in run.members:
        since = "-" if member.since is None else f"{datetime.fromtimestamp(member.since, timezone.utc):%H:%M:%S}Z"
        rows.append([member.name, member.state, since, member.why or "-"])
    console.table(["MEMBER", "STATE", "SINCE", "WHY"], rows)


def _at_worst(cluster: Cluster) -> str:
    """The most that it may cost; nothing where it costs nothing."""
    if cluster.endless:
        return f", and {dollars(cluster.dollars_per_hour)}/h until hvdcloud down: nothing else ends it"
    if cluster.worst_case_dollars == 0:
        return ""
    ends = cluster.ends and cluster.ends.astimezone(timezone.utc)
    by = f" (deleted by Compute Engine at {ends:%Y-%m-%d %H:%M:%S}Z if nothing else does)" if ends else ""
    return f", at worst {dollars(cluster.worst_case_dollars)}{by}"


def _reach(node: Node) -> str:
    if node.host:
        return f"on {node.host}"
    return "through IAP" if node.proxy_command else f"{node.address}:{node.port}" if node.address else "-"


def top(context: typer.Context) -> None:
    """Show nodes, GPUs, the run and its log on a live screen.

    Keys: `q` quits, which changes nothing. Arrows, page keys, Home, End and the mouse wheel scroll the nodes or, after
    `tab`, the log.

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
