"""The commands about runs: run, launch, stacks, logs, stop, pull, report, history; and how their results are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Bucket, Invocation, Nodes, Provider, Wait, Yes
from hvdcloud.cli.cluster import show_down
from hvdcloud.units import counted, dollars, kept_files, seconds, size, some

if TYPE_CHECKING:
    from hvdcloud.cluster.cost import Cost
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.down import DownResult
    from hvdcloud.lifecycle.pull import PullResult
    from hvdcloud.lifecycle.run_result import RunResult
    from hvdcloud.providers.base import Platform

Ranks = Annotated[
    int | None, typer.Option("-np", "--ranks", metavar="N", min=1, help="The number of ranks; default: every slot.")
]
To = Annotated[
    Path | None,
    typer.Option("--to", metavar="DIR", help="Put the checkpoints into this folder.", show_default="./checkpoints"),
]
Command = Annotated[
    list[str] | None,
    typer.Argument(help="What every rank runs, instead of the file's; options after its first word belong to it."),
]
Run = Annotated[str | None, typer.Argument(metavar="RUN", help="The run's id; default: the newest.")]
Controller = Annotated[str | None, typer.Option(metavar="CONTROLLER", help="How ranks find each other: gloo or mpi.")]


def run(
    context: typer.Context,
    command: Command = None,
    ranks: Ranks = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for the end of the run.")] = False,
    down_when_done: Annotated[
        bool,
        typer.Option("--down-when-done", help="Delete the nodes when the run has ended, also with this machine off."),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start with an empty checkpoint folder.")] = False,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Continue from this run, also of a cluster that is gone."),
    ] = None,
    controller: Controller = None,
) -> None:
    """Send the code to every node, run the job, print its output.

    \b
    Example:
      $ hvdcloud run
      $ hvdcloud run -np 4 --detach python train.py --epochs 30
      $ hvdcloud run --resume 20261121-101112-abcdef
    """
    from hvdcloud.cluster.cost import Meter
    from hvdcloud.lifecycle.retry import Retries
    from hvdcloud.lifecycle.run_spec import RunOptions

    invocation: Invocation = context.obj
    words = tuple(command or ())
    options = RunOptions(
        command=words, ranks=ranks, detach=detach, down_when_done=down_when_done, fresh=fresh, resume=resume
    )
    with invocation.context({"run.controller": controller}) as experiment:
        meter, console = Meter(), invocation.console
        invocation.result = result = Retries(experiment, command="run", meter=meter).run(options)
        if detach:
            console.answer(f"run {result.run} keeps running; hvdcloud logs -f {result.run} follows it")
            return
        if result.slow_ranks is not None:
            console.say(result.slow_ranks.text)
        if not down_when_done:
            cost = meter.read()
            invocation.result = result = replace(result, cost=cost)
            result.raise_for_failure()
            if cost is not None:
                console.answer(cost.line)
            money = price(experiment.platform, cost, since="so far")
            parts = result_parts(result, seconds(result.seconds), money, result.checkpoints)
            console.result(parts, command="hvdcloud pull" if result.checkpoint_files else "", progress=True)
            return
        from hvdcloud.lifecycle.launch import finish

        pulled, deleted, cost = finish(experiment, result, meter)
        invocation.result = result = replace(result, cost=cost)
        show_end(console, experiment.platform, result, pulled, deleted, took=result.seconds, again=None)


def launch(
    context: typer.Context,
    command: Command = None,
    nodes: Nodes = None,
    ranks: Ranks = None,
    provider: Provider = None,
    bucket: Bucket = None,
    controller: Controller = None,
    wait: Wait = 0.0,
    yes: Yes = False,
) -> None:
    """Run a whole experiment: build, push, up, run, pull, down.

    \b
    Example:
      $ hvdcloud launch --nodes 4 python train.py --epochs 30
    """
    from hvdcloud.lifecycle.launch import launch as launch_experiment
    from hvdcloud.lifecycle.run_spec import RunOptions

    invocation: Invocation = context.obj
    console = invocation.console
    flags = {"nodes": nodes, "provider": provider, "checkpoints.bucket": bucket, "run.controller": controller}
    with invocation.context(flags) as experiment:
        options = RunOptions(command=tuple(command or ()), ranks=ranks, down_when_done=True)
        invocation.result = result = launch_experiment(experiment, options, confirmed=yes, wait=wait)
        show_end(
            console,
            experiment.platform,
            replace(result.run, cost=result.cost),
            result.pull,
            result.down,
            took=result.seconds,
            again="hvdcloud launch",
        )


def show_end(
    console: Console,
    platform: Platform,
    result: RunResult,
    pulled: PullResult,
    deleted: DownResult,
    *,
    took: float,
    again: str | None,
) -> None:
    """What came of a run whose checkpoints were pulled and whose cluster was deleted.

    Args:
        took: seconds, of all of it.
        again: the command that repeats all; None: there is none.

    Raises:
        JobFailedError: the job has failed.
    """
    own = next((entry for entry in pulled.runs if entry.run == result.run), None)
    in_last_line = own if own is not None and own.complete and result.state == "succeeded" else None
    if others := [each for each in pulled.runs if each is not in_last_line]:
        show_pull(console, replace(pulled, runs=others))
    show_down(console, deleted, with_cost=False)
    if result.cost is not None:
        console.answer(result.cost.line)
    result.raise_for_failure(again=again, pulled=True)
    files = kept_files(own.files, own.others) if own else "no checkpoints"
    if result.left_out:
        files += f"; not kept: {some(result.left_out, most=3)}"
    money = price(platform, result.cost)
    console.result(result_parts(result, seconds(took), money, files), path=own.folder if own and own.files else None)


def result_parts(result: RunResult, *others: str) -> list[str]:
    """What a run that succeeded is known for, `digits trained: accuracy 0.992`, then `others`."""
    number = next((name for name in ("accuracy", "loss") if name in result.metrics), None)
    said = f"{result.cluster} trained" if number or result.progress else f"run {result.run} of {result.cluster} is done"
    if number is not None:
        said += f": {number} {result.metrics[number]:.3g}"
    attempts = counted(len(result.attempts), "attempt") if len(result.attempts) > 1 else ""
    return [said, *filter(None, [*others[:-1], attempts, *others[-1:]])]


def price(platform: Platform, cost: Cost | None, *, since: str = "") -> str:
    """`$0.31`; empty where it is not known."""
    if cost is None:
        return "" if platform.costs_money else "$0"
    return f"{dollars(cost.dollars)} {since}".rstrip()


def stacks(context: typer.Context, run: Run = None) -> None:
    """Show where every rank is: its calls in Python and native code.

    Ranks at the same place are shown once, from the deepest line of your own code inwards. The run continues. Of a run
    that was ended because it was stuck, the stacks of that moment are shown. --json has every thread.

    \b
    Example:
      $ hvdcloud stacks
    """
    from hvdcloud.lifecycle.stacks import stacks as take

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = take(experiment, run)
        for group in result.groups:
            invocation.console.answer("\n".join([group.text, *(f"  {line}" for line in group.lines)]))


def logs(
    context: typer.Context,
    run: Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
    rank: Annotated[
        int | None, typer.Option("--rank", min=0, metavar="K", help="Print only the lines of this rank.")
    ] = None,
) -> None:
    """Print a run's output, from any terminal.

    In an elastic run a line carries the rank that its worker had first, which stays when ranks are assigned again; a
    node that joins later may bring a number that is already in use.

    \b
    Example:
      $ hvdcloud logs --follow
      $ hvdcloud logs --follow --rank 3
    """
    from hvdcloud.lifecycle import logs as lifecycle
    from hvdcloud.lifecycle.run_result import result_of_followed

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        followed = lifecycle.logs(experiment, run, follow_it=follow, rank=rank)
        invocation.result = result = result_of_followed(experiment.name, followed)
        if follow:
            result.raise_for_failure()
            invocation.console.answer(result.summary)
        elif result.last_lines:
            invocation.console.say(f"run {result.run} failed: {result.reason}")


def stop(context: typer.Context, run: Run = None) -> None:
    """Stop a run on every node; its checkpoints are uploaded first.

    \b
    Example:
      $ hvdcloud stop
    """
    from hvdcloud.lifecycle import logs as lifecycle
    from hvdcloud.lifecycle.run_result import result_of

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = result_of(experiment.name, lifecycle.stop(experiment, run))
        invocation.console.answer(result.summary)


def pull(context: typer.Context, run: Run = None, to: To = None, bucket: Bucket = None) -> None:
    """Copy checkpoints from the bucket to this disk and verify them.

    \b
    Example:
      $ hvdcloud pull --to ~/checkpoints
    """
    from hvdcloud.lifecycle.pull import pull as pull_runs

    invocation: Invocation = context.obj
    with invocation.context(bucket=bucket) as experiment:
        invocation.result = result = pull_runs(experiment, run_id=run, target=to)
        show_pull(invocation.console, result)


def show_pull(console: Console, result: PullResult) -> None:
    """Where the files are."""
    # Its nodes have not said that everything is in the bucket.
    missing = "not everything reached the bucket before it ended" if result.ended else "its nodes may hold more"
    for entry in result.runs:
        more = "" if entry.complete else f"; {missing}"
        files = kept_files(entry.files, entry.others, noun="checkpoint file")
        said = f"{files} of run {entry.run}, verified ({size(entry.bytes_fetched)} fetched)"
        if not entry.files:
            console.answer(f"run {entry.run} has written no checkpoint{more}")
        elif entry.complete:
            console.result([said], path=entry.folder)
        else:
            console.answer(f"{said}, in {entry.folder}{more}")
    if not result.runs:
        console.answer(f"no run of {result.cluster} has written a checkpoint")


def report(
    context: typer.Context,
    run: Run = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Write the page to this file.", show_default="report-RUN.html"),
    ] = None,
    bucket: Bucket = None,
) -> None:
    """Write one HTML page about a run: result, load, cost.

    It is made from the bucket alone, so it works when the nodes are gone. The page needs no network.

    \b
    Example:
      $ hvdcloud report --to digits.html
    """
    from hvdcloud.lifecycle.report import report as write_page

    invocation: Invocation = context.obj
    with invocation.context(bucket=bucket) as experiment:
        invocation.result = result = write_page(experiment, run_id=run, target=to)
        nodes = counted(result.nodes_sampled, "node")
        invocation.console.result([f"run {result.run}, {result.result}", nodes], path=result.path)


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
