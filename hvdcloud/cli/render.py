"""How results look to people. `--json` shows the same results as they are."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.console import plain
from hvdcloud.runs.elastic import ranks_text, restarts_text
from hvdcloud.units import dollars, seconds, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hvdcloud.cluster.cost import Cost
    from hvdcloud.cluster.model import Cluster, Node, Plan
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.build import BuildOutcome
    from hvdcloud.lifecycle.down import DownResult
    from hvdcloud.lifecycle.launch import LaunchResult
    from hvdcloud.lifecycle.pull import PullResult
    from hvdcloud.lifecycle.report import ReportResult
    from hvdcloud.lifecycle.run import RunResult
    from hvdcloud.lifecycle.status import StatusResult
    from hvdcloud.lifecycle.up import UpResult
    from hvdcloud.providers.base import Listing


def build(console: Console, result: BuildOutcome) -> None:
    """The digest, and where its SBOM is."""
    how = "was there already" if result.cached else f"built in {seconds(result.seconds)}"
    console.answer(f"{result.reference} {how}")
    console.answer(result.digest or result.image_id)
    if result.sbom is not None:
        places = [f"in {result.sbom.path}"] if result.sbom.path else []
        places += ["beside it at the registry"] if result.sbom.digest else []
        if places:
            console.answer(f"the SBOM of its {result.sbom.packages} Python packages is {' and '.join(places)}")


def plan(console: Console, what: Plan) -> None:
    """The exact requests, then the price."""
    for request in what.requests:
        console.answer(f"{request.method}  # {request.object}")
        console.answer(json.dumps(plain(request.body), indent=2))
    for notice in what.notices:
        console.answer(f"note: {notice}")
    worst = f", at worst {dollars(what.worst_case_dollars)} (after {_duration(what.seconds)})" if what.seconds else ""
    console.answer(f"{dollars(what.dollars_per_hour)}/h{worst}; nothing was changed")


def _duration(value: float) -> str:
    """Of a time limit: `12 h`, `1:23:45`."""
    return f"{value / 3600:g} h" if value % 360 == 0 else str(timedelta(seconds=value))


def up(console: Console, result: UpResult) -> None:
    """The nodes and the next command."""
    if not result.created:
        console.answer(f"cluster {result.cluster} is up already: {len(result.nodes)} node(s)")
    else:
        console.answer(f"cluster {result.cluster} is up: {len(result.nodes)} node(s) in {seconds(result.seconds)}")
    console.answer("next: hvdcloud run; hvdcloud ssh; hvdcloud down deletes it")


def run(console: Console, result: RunResult) -> None:
    """How the run ended; a run that was followed has said so already."""
    if result.state == "running":
        console.answer(f"run {result.run} goes on; hvdcloud logs -f {result.run} follows it")


def ended(console: Console, result: RunResult) -> None:
    """How a run ended that was not followed from its start."""
    console.answer(result.summary)


def pull(console: Console, result: PullResult) -> None:
    """Where the files are."""
    for entry in result.runs:
        more = "" if entry.complete else "; the run may still write more"
        if not entry.files:
            console.answer(f"run {entry.run} has written no checkpoint{more}")
            continue
        console.answer(
            f"{entry.files} checkpoint file(s) of run {entry.run}, verified, in {_short(entry.folder)} "
            f"({size(entry.bytes_fetched)} fetched){more}"
        )
    if not result.runs:
        console.answer(f"no run of {result.cluster} has written a checkpoint")


def report(console: Console, result: ReportResult) -> None:
    """Where the page is, and what it is made of."""
    console.answer(
        f"run {result.run}, {result.result}: {_short(result.path)} ({result.samples} samples of "
        f"{result.nodes_sampled} node(s), {result.checkpoint_files} checkpoint file(s))"
    )


def _short(folder: Path) -> Path:
    """Relative to here, where it is below."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder


def down(console: Console, result: DownResult, *, with_cost: bool = True) -> None:
    """What is gone, and what it had cost.

    Args:
        with_cost: False: that is said elsewhere.
    """
    if result.nothing_to_do:
        console.answer(f"there is no cluster {result.cluster}; nothing to delete")
        return
    cost = ""
    if with_cost and result.dollars is not None:
        what = "what was left of it" if result.nodes_gone else "it"
        cost = f"; {what} cost {dollars(result.dollars)}"
    console.answer(
        f"{result.cluster} is gone: {len(result.deleted)} object(s) deleted in {seconds(result.seconds)}; "
        f"listing again found nothing left{cost}"
    )


def status(console: Console, result: StatusResult) -> None:
    """Nodes, then runs."""
    cluster = result.cluster
    whole = "" if result.whole else f" (NOT WHOLE: {cluster.expected_nodes} expected)"
    console.answer(
        f"cluster {cluster.name} on {cluster.provider}, {seconds(result.age_seconds)} old, "
        f"made by {cluster.owner}{whole}"
    )
    rows = [[node.name, node.state.value, _reach(node)] for node in cluster.nodes]
    console.table(["NODE", "STATE", "SSH"], rows)
    if result.runs_unknown:
        console.answer(f"runs: unknown: {result.runs_unknown}")
    elif result.runs:
        console.table(
            ["RUN", "STATE", "TIME", "CHECKPOINTS"],
            [[entry.run, entry.state, seconds(entry.seconds), entry.checkpoint_files] for entry in result.runs],
        )
        _elastic(console, result.runs[-1])
    console.answer(f"checkpoints: {cluster.bucket}")
    console.answer(f"cost so far: {dollars(result.dollars_so_far)}{_at_worst(cluster)}")
    for note in _cost_notes(result):
        console.answer(f"  {note}")


def _elastic(console: Console, run: RunResult) -> None:
    """Who takes part in an elastic run that goes on; nothing of others."""
    if run.state != "running" or not run.members:
        return
    said = f"no rank of run {run.run} trains: it waits for nodes" if run.world == 0 else f"run {run.run} goes on"
    if run.world:
        said += f" with {ranks_text(ranks=run.ranks, now=run.world)}"
    console.answer(said + restarts_text(run.restarts))
    console.table(
        ["MEMBER", "ALIAS", "STATE", "SINCE", "WHY"],
        [
            [
                member.name,
                member.alias if member.alias != member.name else "-",
                member.state,
                _clock(member.since),
                member.why or "-",
            ]
            for member in run.members
        ],
    )


def _clock(at: float | None) -> str:
    return "-" if at is None else f"{datetime.fromtimestamp(at, timezone.utc):%H:%M:%S}Z"


def _at_worst(cluster: Cluster) -> str:
    """What comes to it; nothing where nothing costs."""
    if cluster.worst_case_dollars is None:
        return f", and {dollars(cluster.dollars_per_hour)}/h until hvdcloud down: nothing else ends it"
    if not cluster.worst_case_dollars:
        return ""
    by = ""
    if cluster.ends is not None:
        ends = cluster.ends.astimezone(timezone.utc)
        # A day that is not today's has to be said.
        day = "" if ends - datetime.now(timezone.utc) < timedelta(hours=12) else f"{ends:%Y-%m-%d} "
        by = f" (deleted by Compute Engine at {day}{ends:%H:%M:%S}Z if nothing else does)"
    return f", at worst {dollars(cluster.worst_case_dollars)}{by}"


def _cost_notes(result: StatusResult) -> list[str]:
    gone = f"{result.nodes_gone} node(s) that are gone are not counted" if result.nodes_gone else ""
    return [*filter(None, [gone]), *result.cluster.cost_notes]


def _reach(node: Node) -> str:
    if node.proxy_command:
        return "through IAP"
    return f"{node.address}:{node.port}" if node.address else "-"


def clusters(console: Console, listing: Listing) -> None:
    """One line per cluster."""
    if not listing.clusters:
        console.answer("no cluster was found" if listing.unseen else "there is no cluster; nothing is running")
        return
    rows = []
    for cluster in listing.clusters:
        states = sorted({node.state.value for node in cluster.nodes})
        rows.append(
            [
                cluster.name,
                f"{len(cluster.nodes)}/{cluster.expected_nodes}",
                "whole" if cluster.whole else ", ".join(["NOT WHOLE", *states]),
                f"{cluster.dollars_per_hour:.2f}",
                f"{cluster.dollars_so_far:.2f}",
                _worst(cluster),
                cluster.owner,
                f"{cluster.created:%Y-%m-%d %H:%M:%S}Z",
            ]
        )
    if len(listing.clusters) > 1:
        rows.append(_total(listing.clusters))
    console.table(["CLUSTER", "NODES", "STATE", "$/H", "SO FAR", "AT WORST", "OWNER", "CREATED"], rows)


def _worst(cluster: Cluster) -> str:
    return "no end" if cluster.worst_case_dollars is None else f"{cluster.worst_case_dollars:.2f}"


def _total(clusters: Sequence[Cluster]) -> list[str]:
    worst = [cluster.worst_case_dollars for cluster in clusters]
    return [
        "total",
        f"{sum(len(cluster.nodes) for cluster in clusters)}",
        "",
        f"{sum(cluster.dollars_per_hour for cluster in clusters):.2f}",
        f"{sum(cluster.dollars_so_far for cluster in clusters):.2f}",
        "no end" if None in worst else f"{sum(filter(None, worst)):.2f}",
        "",
        "",
    ]


def launch(console: Console, result: LaunchResult) -> None:
    """What was trained, how fast, where the checkpoints are, and that nothing is left."""
    if result.run.last_line:
        console.answer(f"trained: {result.run.last_line}")
    pull(console, result.pull)
    down(console, result.down, with_cost=False)
    cost(console, result.cost)
    console.answer(f"all of it took {seconds(result.seconds)}")


def cost(console: Console, what: Cost | None) -> None:
    """What a run came to; nothing where it came to nothing."""
    if what is not None:
        console.answer(what.summary)
