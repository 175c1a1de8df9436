"""The command status, and how a cluster and its runs are shown."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation
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
            [[entry.run, entry.state, seconds(entry.seconds), _checkpoints(entry)] for entry in result.runs],
        )
        newest = result.runs[-1]
        if newest.state not in ("running", "succeeded") and newest.reason:
            console.answer(f"run {newest.run} {newest.state}: {newest.reason}")
        _data(console, newest)
        _elastic(console, newest)
        if newest.slow_ranks is not None:
            console.answer(newest.slow_ranks.text)
    console.answer(f"checkpoints: {cluster.bucket}")
    console.answer(f"cost so far: {dollars(result.dollars_so_far)}{_at_worst(cluster)}")
    if result.nodes_gone:
        console.answer(f"  without {counted(result.nodes_gone, 'node')} that ended before")
    for note in cluster.cost_notes:
        console.answer(f"  {note}")


def _checkpoints(run: RunResult) -> str:
    """How many are in the bucket; `-` where that is not known, or there are none yet."""
    return "-" if run.state == "running" and not run.checkpoint_files else str(run.checkpoint_files)


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
    from hvdcloud.runs.state import ranks_text

    if run.state != "running" or not run.members:
        return
    said = f"no rank of run {run.run} trains: it waits for nodes" if run.world == 0 else f"run {run.run} continues"
    if run.world:
        said += f" with {ranks_text(ranks=run.ranks, now=run.world)}"
    if run.restarts:
        said += f"; the ranks were started again {counted(run.restarts, 'time')}"
    console.answer(said)
    rows = []
    for member in run.members:
        alias = member.alias if member.alias != member.name else "-"
        since = "-" if member.since is None else f"{datetime.fromtimestamp(member.since, timezone.utc):%H:%M:%S}Z"
        rows.append([member.name, alias, member.state, since, member.why or "-"])
    console.table(["MEMBER", "ALIAS", "STATE", "SINCE", "WHY"], rows)


def _at_worst(cluster: Cluster) -> str:
    """The most that it may cost; nothing where it costs nothing."""
    if cluster.worst_case_dollars is None:
        return f", and {dollars(cluster.dollars_per_hour)}/h until hvdcloud down: nothing else ends it"
    if not cluster.worst_case_dollars:
        return ""
    by = ""
    if cluster.ends is not None:
        ends = cluster.ends.astimezone(timezone.utc)
        # A day other than today is shown.
        day = "" if ends - datetime.now(timezone.utc) < timedelta(hours=12) else f"{ends:%Y-%m-%d} "
        by = f" (deleted by Compute Engine at {day}{ends:%H:%M:%S}Z if nothing else does)"
    return f", at worst {dollars(cluster.worst_case_dollars)}{by}"


def _reach(node: Node) -> str:
    if node.host:
        return f"on {node.host}"
    return "through IAP" if node.proxy_command else f"{node.address}:{node.port}" if node.address else "-"
