"""How results look to people. `--json` shows the same results as they are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hvdcloud.console import plain

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.build import BuildOutcome
    from hvdcloud.lifecycle.down import DownResult
    from hvdcloud.lifecycle.launch import LaunchResult
    from hvdcloud.lifecycle.pull import PullResult
    from hvdcloud.lifecycle.run import RunResult
    from hvdcloud.lifecycle.status import StatusResult
    from hvdcloud.lifecycle.up import UpResult
    from hvdcloud.providers.base import Listing, Node, Plan


def seconds(value: float) -> str:
    """`3.2 s`, `4 min 10 s`, `2 h 05 min`."""
    if value < 60:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def size(count: int) -> str:
    """Bytes as `512 B`, `1.5 MB`, in powers of ten."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError("unreachable")


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
    worst = f", at worst ${what.worst_case_dollars:.2f} (after {what.seconds / 3600:g} h)" if what.seconds else ""
    console.answer(f"${what.dollars_per_hour:.2f}/h{worst}; nothing was changed")


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
            f"{entry.files} checkpoint file(s) of run {entry.run}, verified, in {entry.folder} "
            f"({size(entry.bytes_fetched)} fetched){more}"
        )
    if not result.runs:
        console.answer(f"no run of {result.cluster} has written a checkpoint")


def down(console: Console, result: DownResult) -> None:
    """What is gone."""
    if result.nothing_to_do:
        console.answer(f"there is no cluster {result.cluster}; nothing to delete")
        return
    console.answer(
        f"{result.cluster} is gone: {len(result.deleted)} object(s) deleted in {seconds(result.seconds)}; "
        "listing again found nothing left"
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
    console.answer(f"checkpoints: {cluster.bucket}")
    console.answer(f"cost so far: ${result.dollars_so_far:.2f}")


def _reach(node: Node) -> str:
    return "through IAP" if node.proxy_command else f"{node.address or '-'}:{node.port}"


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
                cluster.owner,
                f"{cluster.created:%Y-%m-%d %H:%M:%S}Z",
            ]
        )
    console.table(["CLUSTER", "NODES", "STATE", "$/H", "OWNER", "CREATED"], rows)


def launch(console: Console, result: LaunchResult) -> None:
    """What was trained, how fast, where the checkpoints are, and that nothing is left."""
    if result.run.last_line:
        console.answer(f"trained: {result.run.last_line}")
    pull(console, result.pull)
    down(console, result.down)
    console.answer(f"all of it took {seconds(result.seconds)}")
