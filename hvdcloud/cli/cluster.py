"""The commands about a cluster: up, down, list, status, resize, ssh; and how their results are shown."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli import complete
from hvdcloud.cli.app import Bucket, Invocation, Nodes, Provider, Share, Wait, Yes
from hvdcloud.errors import UsageError
from hvdcloud.units import counted, dollars, seconds

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster, Node, Plan
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.down import DownResult
    from hvdcloud.lifecycle.resize import ResizeResult
    from hvdcloud.lifecycle.run_model import RunResult
    from hvdcloud.lifecycle.status import StatusResult
    from hvdcloud.providers.base import Listing, Platform


_NAMED = 2  # Of the objects that a plan would create.


def up(
    context: typer.Context,
    nodes: Nodes = None,
    provider: Provider = None,
    bucket: Bucket = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be made and its price; change nothing.")
    ] = False,
    wait: Wait = 0.0,
    share: Share = None,
    yes: Yes = False,
) -> None:
    """Create the cluster: all nodes or none.

    Ctrl-C deletes what was created so far.

    \b
    Example:
      $ hvdcloud up --dry-run           # what would be made, and what it costs
      $ hvdcloud up --dry-run --json    # the exact requests
      $ hvdcloud up --wait 6h           # until a zone has room
    """
    from hvdcloud.cluster.confirm_cost import Consent
    from hvdcloud.lifecycle.retry import Retries
    from hvdcloud.lifecycle.up import plan_up

    invocation: Invocation = context.obj
    flags = {
        "nodes": nodes,
        "provider": provider,
        "checkpoints.bucket": bucket,
        "local.share": share,
        "ssh.share": share,
    }
    with invocation.context(flags) as experiment:
        if dry_run:
            invocation.result = plan = plan_up(experiment)
            for line in plan_lines(plan, experiment.platform):
                invocation.console.answer(line)
        else:
            retries = Retries(experiment, command="up")
            invocation.result = result = retries.up(consent=Consent(given=yes), wait=wait)
            how = f"in {seconds(result.seconds)}"
            said = (
                f"up: {counted(len(result.nodes), 'node')} {how}"
                if result.created
                else f"up already: {counted(len(result.nodes), 'node')}"
            )
            invocation.console.answer(f"cluster {result.cluster} is {said}")
            invocation.console.answer("next: hvdcloud run; hvdcloud ssh; hvdcloud down deletes it")


def plan_lines(what: Plan, platform: Platform) -> list[str]:
    """The nodes, what is sent for them, what is worth knowing, and the price."""
    machines = f", {kinds}" if (kinds := platform.machines()) else ""
    objects = [request.object for request in what.requests]
    more = f" and {len(objects) - _NAMED} more" if len(objects) > _NAMED else ""
    worst = f", at worst {dollars(what.worst_case_dollars)} (after {_duration(what.seconds)})" if what.seconds else ""
    return [
        f"cluster {what.spec.name}: {counted(what.spec.nodes, 'node')} {platform.place}{machines}",
        f"{counted(len(objects), 'request')}: {', '.join(objects[:_NAMED])}{more}; --json prints them",
        *(f"note: {notice}" for notice in what.notices),
        f"{dollars(what.dollars_per_hour)}/h{worst}; nothing was changed",
    ]


def _duration(value: float) -> str:
    """A time limit as text: `12 h`, `1:23:45`."""
    return f"{value / 3600:g} h" if value % 360 == 0 else str(timedelta(seconds=value))


def down(
    context: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if checkpoints are not on this disk.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Delete every cluster of this provider, of every owner.")
    ] = False,
    provider: Provider = None,
) -> None:
    """Delete the cluster, unless a checkpoint would be lost.

    It deletes everything that has the cluster's labels, and refuses while a checkpoint is not verified on this disk.

    \b
    Example:
      $ hvdcloud down
      $ hvdcloud down --all --provider gce    # of every owner
    """
    from hvdcloud.lifecycle import down as lifecycle

    invocation: Invocation = context.obj
    if every:
        invocation.name = invocation.name or "all"
    with invocation.context({"provider": provider}) as experiment:
        results = lifecycle.down_all(experiment, force=force) if every else [lifecycle.down(experiment, force=force)]
    invocation.result = results if every else results[0]
    for result in results:
        show_down(invocation.console, result)
    if not results:
        invocation.console.answer("there is no cluster; nothing to delete")


def show_down(console: Console, result: DownResult, *, with_cost: bool = True) -> None:
    """What was deleted, and, unless that is shown elsewhere, what it cost."""
    from hvdcloud.cluster.spending import spent_text

    if result.nothing_to_do:
        console.answer(f"there is no cluster {result.cluster}; nothing to delete")
        return
    cost = ""
    if with_cost and result.dollars is not None:
        what = "what was left of it" if result.nodes_gone else "it"
        cost = f"; {what} cost {dollars(result.dollars)}"
    console.answer(
        f"{result.cluster} is gone: {counted(len(result.deleted), 'object')} deleted in {seconds(result.seconds)}; "
        f"listing again found nothing left{cost}"
    )
    if result.unseen:
        console.warn(
            f"{', '.join(result.unseen)} did not answer: every node was elsewhere, but what is left of one that was "
            f"replaced may be there; hvdcloud down --name {result.cluster} deletes it when it answers"
        )
    if cost and result.spent:
        console.answer(f"  {spent_text(result.spent)}")


def list_clusters(context: typer.Context, provider: Provider = None) -> None:
    """List every cluster, also those that another machine made.

    They are found by their labels: those of this Docker engine, or of this Google Cloud project.

    \b
    Example:
      $ hvdcloud list --provider gce
    """
    from hvdcloud import providers
    from hvdcloud.cluster.state import as_known_here

    invocation: Invocation = context.obj
    config = invocation.load_config({"provider": provider}, default_name="any")
    with invocation.console.waiting("list", "looking for clusters"):
        listing = providers.connect(config, on_retry=invocation.console.say).list()
    listing = replace(listing, clusters=tuple(map(as_known_here, listing.clusters)))
    invocation.result = listing.clusters
    show_clusters(invocation.console, listing)
    if listing.unseen:
        raise listing.unseen_error()


def show_clusters(console: Console, listing: Listing) -> None:
    """One line per cluster."""
    clusters = listing.clusters
    if not clusters:
        console.answer("no cluster was found" if listing.unseen else "there is no cluster; nothing is running")
        return
    rows: list[list[str]] = []
    costs = any(_costs(cluster) for cluster in clusters)
    for cluster in clusters:
        nodes = f"{len(cluster.nodes)}/{cluster.expected_nodes}"
        states = sorted({node.state.value for node in cluster.nodes})
        state = "whole" if cluster.whole else "stopped" if cluster.has_stopped else ", ".join(["NOT WHOLE", *states])
        created = f"{cluster.created:%Y-%m-%d %H:%M:%S}Z"
        rows.append([cluster.name, nodes, state, *(_dollars(cluster) if costs else []), cluster.owner, created])
    if len(clusters) > 1:
        total = _dollars(*clusters) if costs else []
        rows.append(["total", f"{sum(len(cluster.nodes) for cluster in clusters)}", "", *total, "", ""])
    money = ["$/H", "SO FAR", "AT WORST"] if costs else []
    console.table(["CLUSTER", "NODES", "STATE", *money, "OWNER", "CREATED"], rows)
    for cluster in clusters:
        first, *others = cluster.cost_notes or ("",)
        if first:
            more = f"; {len(others)} more: hvdcloud status --name {cluster.name}" if others else ""
            console.answer(f"  {cluster.name}: {first}{more}")


def _costs(cluster: Cluster) -> bool:
    """Whether it costs anything; nodes of this machine do not."""
    return bool(cluster.dollars_per_hour or cluster.dollars_so_far or cluster.worst_case_dollars != 0)


def _dollars(*clusters: Cluster) -> list[str]:
    """What they cost together: per hour, so far, at worst."""
    worst = [cluster.worst_case_dollars for cluster in clusters]
    return [
        f"{sum(cluster.dollars_per_hour for cluster in clusters):.2f}",
        f"{sum(cluster.dollars_so_far for cluster in clusters):.2f}",
        "no end" if None in worst else f"{sum(filter(None, worst)):.2f}",
    ]


def status(
    context: typer.Context,
    seconds: Annotated[
        float | None,
        typer.Argument(metavar="SECONDS", help="The seconds between two looks with --watch; default: 2.", min=0.5),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Repeat until Ctrl-C.")] = False,
) -> None:
    """Show the cluster's nodes, runs and cost.

    With `--watch` a terminal shows it in place; elsewhere it is printed again whenever something changes.

    \b
    Example:
      $ hvdcloud status
      $ hvdcloud status --watch 5
      $ hvdcloud status --json | jq .result.cluster.worst_case_dollars
    """
    from hvdcloud.lifecycle.status import status as read_status
    from hvdcloud.lifecycle.status import watch as keep_watching

    invocation: Invocation = context.obj
    if watch and invocation.console.as_json:
        raise UsageError("--watch has no end, and --json is one document", hint="hvdcloud status --json")
    if seconds is not None and not watch:
        raise UsageError("SECONDS says how often --watch checks", hint=f"hvdcloud status --watch {seconds:g}")
    with invocation.context() as experiment:
        if watch:
            keep_watching(experiment, every=seconds, show=show_status)
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
    if result.needs_token:
        console.answer("  uploads wait for a storage token, and continue when this machine gets one")
    elif result.token_process is not None:
        console.answer(f"  process {result.token_process} renews the nodes' storage token until they are fetched")
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
    from hvdcloud.runs.data import progress

    waiting = [each for each in run.data.nodes if not each.ready] if run.data is not None else []
    if run.state != "running" or run.data is None or run.data.seconds is not None or not waiting:
        return
    console.answer(f"run {run.run} waits for the data of {counted(len(waiting), 'node')}")
    console.table(["NODE", "DATA"], [[each.node, progress(each)] for each in run.data.nodes])


def _elastic(console: Console, run: RunResult) -> None:
    """The members of an elastic run that is running; nothing for other runs."""
    from hvdcloud.runs.state import ranks_text, restarts_text

    if run.state != "running" or not run.members:
        return
    said = f"no rank of run {run.run} trains: it waits for nodes" if run.world == 0 else f"run {run.run} continues"
    if run.world:
        said += f" with {ranks_text(ranks=run.ranks, now=run.world)}"
    console.answer(said + restarts_text(run.restarts))
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


def resize(
    context: typer.Context,
    nodes: Annotated[int, typer.Argument(min=1, metavar="N", help="The number of nodes that the cluster should have.")],
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete nodes even if their checkpoints are not in the bucket.")
    ] = False,
) -> None:
    """Add nodes to the cluster, or remove the last ones.

    It works between runs, and during an elastic run. With the number of nodes that the cluster should have already, it
    replaces those that are gone or stopped. The head always stays.

    \b
    Example:
      $ hvdcloud resize 4
      $ hvdcloud resize 2    # uploads the checkpoints of the other two first
    """
    from hvdcloud.cluster.confirm_cost import Consent
    from hvdcloud.lifecycle.resize import resize as resize_cluster

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = resize_cluster(experiment, nodes, consent=Consent(given=yes), force=force)
        _show_resize(invocation.console, result)


def _show_resize(console: Console, result: ResizeResult) -> None:
    has = f"cluster {result.cluster} has {counted(result.nodes, 'node')}"
    if not result.changed:
        console.answer(f"{has}, and all of them run; nothing to do")
    else:
        changes = [f"made {', '.join(result.made)}"] if result.made else []
        changes += [f"deleted {', '.join(result.removed)}"] if result.removed else []
        cost = ""
        if result.dollars_per_hour or result.dollars_per_hour_before:
            cost = f"; {dollars(result.dollars_per_hour_before)}/h before, {dollars(result.dollars_per_hour)}/h now"
        console.answer(f"{has} after {seconds(result.seconds)}: {'; '.join(changes)}{cost}")
        if result.run and result.made:
            console.answer(f"run {result.run} takes them in as soon as they are prepared")
    if result.note:
        console.answer(result.note)


def ssh(
    context: typer.Context,
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="The node's name or index.", autocompletion=complete.nodes)
    ] = "0",
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run there; options after its first word belong to it.")
    ] = None,
) -> None:
    """Open a shell on a node, or run a command there.

    A shell begins in /workspace, where the project's code is. The node's host key was pinned when the cluster came up.

    \b
    Example:
      $ hvdcloud ssh 1
      $ hvdcloud ssh 0 nvidia-smi -L
    """
    from hvdcloud.lifecycle.ssh import ssh_argv

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        argv = ssh_argv(experiment, node, command or [])
    os.execv(argv[0], argv)
