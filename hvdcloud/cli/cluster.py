"""The commands about a cluster: up, down, list, resize, ssh; and how their results are shown."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Bucket, Invocation, Nodes, Provider, Wait, Yes
from hvdcloud.errors import UsageError
from hvdcloud.units import counted, dollars, seconds, some

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Plan
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.down import DownResult
    from hvdcloud.providers.base import Listing, Platform


def up(
    context: typer.Context,
    nodes: Nodes = None,
    provider: Provider = None,
    bucket: Bucket = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be made and its price; change nothing.")
    ] = False,
    wait: Wait = 0.0,
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
    from hvdcloud.lifecycle.up import plan_up
    from hvdcloud.lifecycle.up import up as make

    invocation: Invocation = context.obj
    flags = {"nodes": nodes, "provider": provider, "checkpoints.bucket": bucket}
    with invocation.context(flags) as experiment:
        if dry_run:
            invocation.result = plan = plan_up(experiment)
            _show_plan(invocation.console, plan, experiment.platform)
        else:
            invocation.result = result = make(experiment, confirmed=yes, wait=wait)
            how, took = ("up", f" in {seconds(result.seconds)}") if result.created else ("up already", "")
            nodes_up = counted(len(result.nodes), "node")
            invocation.console.answer(f"cluster {result.cluster} is {how}: {nodes_up}{took}")
            invocation.console.answer("next: hvdcloud run; hvdcloud ssh; hvdcloud down deletes it")


def _show_plan(console: Console, what: Plan, platform: Platform) -> None:
    """The nodes, what is sent for them, what is worth knowing, and the price."""
    machines = f", {kinds}" if (kinds := platform.machines()) else ""
    objects = [request.object for request in what.requests]
    price = "price not known" if what.dollars_per_hour is None else f"{dollars(what.dollars_per_hour)}/h"
    if what.seconds and what.worst_case_dollars is not None:
        price += f", at worst {dollars(what.worst_case_dollars)} (after {seconds(what.seconds)})"
    console.answer(f"cluster {what.spec.name}: {counted(what.spec.nodes, 'node')} {platform.place}{machines}")
    console.answer(f"{counted(len(objects), 'request')}: {some(objects, most=2)}; --json prints them")
    for notice in what.notices:
        console.answer(f"note: {notice}")
    console.answer(f"{price}; nothing was changed")


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
    if result.nothing_to_do:
        console.answer(f"there is no cluster {result.cluster}; nothing to delete")
        return
    cost = ""
    if with_cost and result.dollars is not None:
        cost = f"; what was deleted cost {dollars(result.dollars)}"
    console.answer(
        f"{result.cluster} is gone: {counted(len(result.deleted), 'object')} deleted in {seconds(result.seconds)}; "
        f"listing again found nothing left{cost}"
    )
    if result.unseen:
        console.warn(f"{', '.join(result.unseen)} did not answer; every node was elsewhere")


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
    config = invocation.load({"provider": provider}, default_name="any").config
    with invocation.console.waiting("list", "looking for clusters"):
        listing = providers.platform(config).connect(on_retry=invocation.console.say).list()
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
    for cluster in clusters:
        nodes = f"{len(cluster.nodes)}/{cluster.expected_nodes}"
        states = sorted({node.state.value for node in cluster.nodes})
        state = "whole" if cluster.whole else "stopped" if cluster.has_stopped else ", ".join(["NOT WHOLE", *states])
        created = f"{cluster.created:%Y-%m-%d %H:%M:%S}Z" if cluster.created.timestamp() else "cannot be read"
        amounts = (cluster.dollars_per_hour, cluster.dollars_so_far, cluster.worst_case_dollars)
        costs = ["?" if each is None else f"{each:.2f}" for each in amounts]
        if cluster.endless:
            costs[-1] = "no end"
        rows.append([cluster.name, nodes, state, *costs, cluster.owner, created])
    console.table(["CLUSTER", "NODES", "STATE", "$/H", "SO FAR", "AT WORST", "OWNER", "CREATED"], rows)
    for cluster in clusters:
        if cluster.cost_notes:
            console.answer(f"  {cluster.name}: {some(cluster.cost_notes, most=1)}")


def resize(
    context: typer.Context,
    nodes: Annotated[int, typer.Argument(min=1, metavar="N", help="The number of nodes that the cluster should have.")],
    yes: Yes = False,
) -> None:
    """Add nodes to the cluster, or remove the last ones.

    It works between runs, and during an elastic run. With the number of nodes that the cluster should have already, it
    replaces those that are gone or stopped. The head always stays.

    \b
    Example:
      $ hvdcloud resize 4
      $ hvdcloud resize 2    # uploads the checkpoints of the other two first
    """
    from hvdcloud.lifecycle.resize import resize as resize_cluster

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = resize_cluster(experiment, nodes, confirmed=yes)
    console = invocation.console
    has = f"cluster {result.cluster} has {counted(result.nodes, 'node')}"
    if not (result.made or result.removed):
        console.answer(f"{has}, and all of them run; nothing to do")
    else:
        changes = [f"made {', '.join(result.made)}"] if result.made else []
        changes += [f"deleted {', '.join(result.removed)}"] if result.removed else []
        console.answer(f"{has} after {seconds(result.seconds)}: {'; '.join(changes)}")
        if result.run and result.made:
            console.answer(f"run {result.run} takes them in as soon as they are prepared")
    if (written := experiment.config.nodes) != nodes:
        console.answer(f"hvdcloud.yaml has nodes: {written}; write nodes: {nodes} there to keep it that way")


def ssh(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node's name or index.")] = "0",
    command: Annotated[
        list[str] | None, typer.Argument(help="What to run there; options after its first word belong to it.")
    ] = None,
) -> None:
    """Open a shell on a node, or run a command there.

    It begins in /workspace, where the project's code is. Several words are one command, with its quotes; one is a text
    for the node's shell. The node's host key was pinned when the cluster came up.

    \b
    Example:
      $ hvdcloud ssh 1
      $ hvdcloud ssh 0 nvidia-smi -L
    """
    from hvdcloud.lifecycle.ssh import ssh_argv

    invocation: Invocation = context.obj
    words = command or []
    if words[:1] == ["--"]:
        del words[0]
    elif words and words[0].startswith("-"):
        raise UsageError(f"{words[0]} is no command", hint=f"options stand before the node: hvdcloud ssh {words[0]} …")
    with invocation.context() as experiment:
        argv = ssh_argv(experiment, node, words)
    os.execv(argv[0], argv)


def forward(
    context: typer.Context, port: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535, help="The port.")]
) -> None:
    """Show a port of the head at localhost.

    The port of this machine leads to the head's port of the same number until Ctrl-C. It is an SSH connection: while it
    lasts, the nodes are not idle.

    \b
    Example:
      $ hvdcloud forward 6006
    """
    from hvdcloud.lifecycle.ssh import forward_argv

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        argv = forward_argv(experiment, port)
        experiment.console.say(f"localhost:{port} leads to port {port} of the head until Ctrl-C")
    os.execv(argv[0], argv)
