"""The command history, and how past runs are shown."""

from __future__ import annotations

from typing import Annotated

import typer

from hvdcloud.cli.app import Bucket, Invocation
from hvdcloud.units import dollars, seconds


def history(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Show this many runs at most.")] = 20,
    bucket: Bucket = None,
) -> None:
    """List past runs with result, accuracy, time and cost.

    They are read from the bucket, newest first, so that it works from any machine when the nodes are gone. All clusters
    of the bucket are shown, or with --name one. A run's cost is that of its nodes from its start to its end.

    \b
    Example:
      $ hvdcloud history
      $ hvdcloud history --bucket gs://my-bucket/digits --limit 200 --json
    """
    from hvdcloud.lifecycle.history import history as read_history

    invocation: Invocation = context.obj
    console = invocation.console
    with invocation.context(default_name="any" if bucket else None, bucket=bucket) as experiment:
        invocation.result = result = read_history(experiment, cluster=invocation.name, limit=limit)
    rows: list[list[str]] = []
    for run in result.runs:
        ended = (run.result or "unknown") + (f" ({run.exit_code})" if run.exit_code else "")
        said = next((f"{name} {run.metrics[name]:.3g}" for name in ("accuracy", "loss") if name in run.metrics), "-")
        cost = "-" if run.dollars is None else dollars(run.dollars)
        took = "-" if run.seconds is None else seconds(run.seconds)
        rows.append([run.run, run.cluster, ended, said, took, cost, str(run.nodes or "-")])
    if rows:
        console.table(["RUN", "CLUSTER", "RESULT", "METRIC", "TIME", "COST", "NODES"], rows)
    else:
        console.answer(f"{result.bucket} knows of no run")
