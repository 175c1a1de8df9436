"""The commands about a run: run, launch, logs, stop, pull, report; and how their results are shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Bucket, Invocation, Nodes, Provider, Yes
from hvdcloud.cli.cluster import show_down
from hvdcloud.units import counted, seconds, size

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.pull import PullResult

Ranks = Annotated[int | None, typer.Option("-np", "--ranks", min=1, help="How many ranks; default: every slot.")]
To = Annotated[
    Path | None, typer.Option("--to", metavar="DIR", help="The folder for checkpoints.", show_default="./checkpoints")
]
Command = Annotated[list[str] | None, typer.Argument(help="After `--`: what every rank runs, instead of the file's.")]
Run = Annotated[str | None, typer.Argument(help="The run's id; default: the newest.")]
Controller = Annotated[str | None, typer.Option(help="gloo or mpi, instead of the file's.")]
Timeline = Annotated[
    bool, typer.Option("--timeline", help="Horovod's timeline comes back as timeline.json with the checkpoints.")
]
Autotune = Annotated[
    bool, typer.Option("--autotune", help="Horovod tunes itself; what it tried comes back as autotune.csv.")
]


def run(
    context: typer.Context,
    command: Command = None,
    ranks: Ranks = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for its end.")] = False,
    down_when_done: Annotated[
        bool, typer.Option("--down-when-done", help="The nodes end themselves when the run has ended.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not continue from the cluster's previous run.")] = False,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume", metavar="RUN", help="Continue from this run in the bucket, also of a cluster that is gone."
        ),
    ] = None,
    controller: Controller = None,
    timeline: Timeline = False,
    autotune: Autotune = False,
) -> None:
    """Send the code to every node, start the job, stream its output, exit with its result.

    Perfetto (ui.perfetto.dev) and Chrome's chrome://tracing show what `--timeline` writes. `--autotune` needs a few
    hundred steps before it has tried anything. Neither works in elastic runs.

    \b
    Example:
      $ hvdcloud run
      $ hvdcloud run -np 4 --detach -- python train.py --epochs 30
      $ hvdcloud run --timeline && hvdcloud pull
      $ hvdcloud run --resume 20261121-101112-abcdef
    """
    from hvdcloud.cluster.cost import Meter
    from hvdcloud.lifecycle import run as lifecycle

    invocation: Invocation = context.obj
    options = lifecycle.RunOptions(
        command=tuple(command or ()),
        ranks=ranks,
        detach=detach,
        down_when_done=down_when_done,
        fresh=fresh,
        resume=resume,
        timeline=timeline,
        autotune=autotune,
    )
    with invocation.context({"run.controller": controller}) as experiment:
        meter = Meter()
        invocation.result = result = lifecycle.run(experiment, options, meter=meter)
        if result.state == "running":  # How a run ended that was followed is shown already.
            invocation.console.answer(f"run {result.run} keeps running; hvdcloud logs -f {result.run} follows it")
        if down_when_done and not detach:
            from hvdcloud.lifecycle.launch import finish

            pulled, deleted, cost = finish(experiment, result, target=None, meter=meter)
            invocation.result = result = replace(result, cost=cost)
            show_pull(invocation.console, pulled)
            show_down(invocation.console, deleted, with_cost=False)
            if cost is not None:
                invocation.console.answer(cost.summary)
        result.raise_for_failure(pulled=down_when_done and not detach)


def launch(
    context: typer.Context,
    command: Command = None,
    nodes: Nodes = None,
    ranks: Ranks = None,
    provider: Provider = None,
    bucket: Bucket = None,
    controller: Controller = None,
    to: To = None,
    yes: Yes = False,
    timeline: Timeline = False,
    autotune: Autotune = False,
) -> None:
    """Build if needed, push, up, run, pull, down: the whole life of one experiment.

    \b
    Example:
      $ hvdcloud launch --nodes 4 -- python train.py --epochs 30
    """
    from hvdcloud.lifecycle.launch import launch as launch_experiment
    from hvdcloud.lifecycle.run import RunOptions

    invocation: Invocation = context.obj
    console = invocation.console
    flags = {"nodes": nodes, "provider": provider, "checkpoints.bucket": bucket, "run.controller": controller}
    with invocation.context(flags) as experiment:
        options = RunOptions(
            command=tuple(command or ()), ranks=ranks, down_when_done=True, timeline=timeline, autotune=autotune
        )
        invocation.result = result = launch_experiment(experiment, options, target=to, confirmed=yes)
        if result.run.last_line:
            console.answer(f"trained: {result.run.last_line}")
        show_pull(console, result.pull)
        show_down(console, result.down, with_cost=False)
        if result.cost is not None:
            console.answer(result.cost.summary)
        console.answer(f"all of it took {seconds(result.seconds)}")
        result.run.raise_for_failure(
            hint="its output is above, its checkpoints are here; fix it, then launch again", pulled=True
        )


def logs(
    context: typer.Context,
    run: Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, metavar="K", help="Only the lines of this rank.")] = None,
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
    from hvdcloud.lifecycle.run import result_of

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        state = lifecycle.logs(experiment, run, follow_it=follow, rank=rank)
        invocation.result = result = result_of(experiment.name, state)
        if follow:
            invocation.console.answer(result.summary)
            result.raise_for_failure()


def stop(context: typer.Context, run: Run = None) -> None:
    """End a run on every node; its checkpoints go to the bucket first.

    \b
    Example:
      $ hvdcloud stop
    """
    from hvdcloud.lifecycle import logs as lifecycle
    from hvdcloud.lifecycle.run import result_of

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = result_of(experiment.name, lifecycle.stop(experiment, run))
        invocation.console.answer(result.summary)


def pull(context: typer.Context, run: Run = None, to: To = None, bucket: Bucket = None) -> None:
    """Checkpoints from the bucket to this disk, each verified.

    \b
    Example:
      $ hvdcloud pull --to ~/checkpoints
    """
    from hvdcloud.lifecycle.pull import pull as pull_runs

    invocation: Invocation = context.obj
    with invocation.context({"checkpoints.bucket": bucket}) as experiment:
        invocation.result = result = pull_runs(experiment, run_id=run, target=to)
        show_pull(invocation.console, result)


def show_pull(console: Console, result: PullResult) -> None:
    """Where the files are."""
    for entry in result.runs:
        said = f"run {entry.run} has written no checkpoint"
        if entry.files:
            said = f"{counted(entry.files, 'checkpoint file')} of run {entry.run}, verified, in {_short(entry.folder)} "
            said += f"({size(entry.bytes_fetched)} fetched)"
        console.answer(said + ("" if entry.complete else "; the run may still write more"))
    if not result.runs:
        console.answer(f"no run of {result.cluster} has written a checkpoint")


def report(
    context: typer.Context,
    run: Run = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="The page.", show_default="report-RUN.html")
    ] = None,
    bucket: Bucket = None,
) -> None:
    """Write a run as one HTML page: what it did, how busy its machines were, what it cost.

    It is made from the bucket alone, so it works when the nodes are gone; it needs no network to be read.

    \b
    Example:
      $ hvdcloud report --to digits.html
    """
    from hvdcloud.lifecycle.report import report as write_page

    invocation: Invocation = context.obj
    with invocation.context({"checkpoints.bucket": bucket}) as experiment:
        invocation.result = result = write_page(experiment, run_id=run, target=to)
        invocation.console.answer(
            f"run {result.run}, {result.result}: {_short(result.path)} ({result.samples} samples of "
            f"{counted(result.nodes_sampled, 'node')}, {counted(result.checkpoint_files, 'checkpoint file')})"
        )


def _short(folder: Path) -> Path:
    """Relative to here, where it is below."""
    here = Path.cwd()
    return folder.relative_to(here) if folder.is_relative_to(here) else folder
