"""Every command: its arguments, one call, its rendering.

A docstring is what `--help` shows. Its first line is for the list of all commands; it ends with an example: a paragraph
that begins with a backslash and a b, so that its lines stay as they are, then `Example:` and one to three lines
`  $ hvdcloud …`, each with a comment where the options do not speak for themselves.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from hvdcloud.cli.main import Invocation, app, config_app
from hvdcloud.errors import UsageError

Nodes = Annotated[int | None, typer.Option("--nodes", "-n", metavar="N", help="How many nodes, instead of the file's.")]
Provider = Annotated[str | None, typer.Option(help="local or gce, instead of the file's.")]
Bucket = Annotated[str | None, typer.Option(help="gs://BUCKET[/PREFIX] or file:///DIR, instead of the file's.")]
Ranks = Annotated[int | None, typer.Option("-np", "--ranks", min=1, help="How many ranks; default: every slot.")]
To = Annotated[
    Path | None, typer.Option("--to", metavar="DIR", help="The folder for checkpoints.", show_default="./checkpoints")
]
Command = Annotated[list[str] | None, typer.Argument(help="After `--`: what every rank runs, instead of the file's.")]
Run = Annotated[str | None, typer.Argument(help="The run's id; default: the newest.")]
Controller = Annotated[str | None, typer.Option(help="gloo or mpi, instead of the file's.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, whatever it may cost.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Do not go on from the cluster's previous run.")]
Resume = Annotated[
    str | None,
    typer.Option("--resume", metavar="RUN", help="Go on from this run in the bucket, also of a cluster that is gone."),
]
Timeline = Annotated[
    bool, typer.Option("--timeline", help="Horovod's timeline comes back as timeline.json with the checkpoints.")
]
Autotune = Annotated[
    bool, typer.Option("--autotune", help="Horovod tunes itself; what it tried comes back as autotune.csv.")
]


@app.command()
def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new project's folder.")] = Path(),
    template: Annotated[str, typer.Option(help="torch, keras, torch-elastic or keras-elastic.")] = "torch",
) -> None:
    """Write a project that runs as it is: hvdcloud.yaml, train.py, requirements.txt.

    \b
    Example:
      $ hvdcloud init digits --template keras
    """
    from hvdcloud.lifecycle.init import init as start

    invocation: Invocation = context.obj
    result = start(folder, template=template, name=invocation.name)
    invocation.result = result
    for name in result.files:
        invocation.console.answer(f"wrote {folder / name}")
    go = f"cd {folder} && " if folder != Path() else ""
    invocation.console.answer(f"next: {go}hvdcloud launch")


@app.command()
def build(
    context: typer.Context,
    push: Annotated[bool, typer.Option("--push", help="Push it as well.")] = False,
    cache_from: Annotated[
        str | None,
        typer.Option(
            help="A registry's repository: images that it has are pulled, not built.", metavar="HOST/PATH[:TAG]"
        ),
    ] = None,
    cache_to: Annotated[
        str | None, typer.Option(help="A repository to send them to, for --cache-from.", metavar="HOST/PATH")
    ] = None,
    sbom: Annotated[
        Path | None, typer.Option(help="Write what Python packages are in it here: CycloneDX, JSON.", metavar="PATH")
    ] = None,
    remote: Annotated[bool, typer.Option("--remote", help="Let Google Cloud Build do it, and push it.")] = False,
) -> None:
    """Build the image that the nodes run; print its digest.

    \b
    Example:
      $ hvdcloud build
      $ hvdcloud build --push --cache-from us-central1-docker.pkg.dev/my-project/hvdcloud/cache
    """
    from hvdcloud.cli import render
    from hvdcloud.lifecycle.build import build as build_image
    from hvdcloud.lifecycle.build_remote import build_remote

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = (
            build_remote(experiment, cache_from=cache_from, cache_to=cache_to, sbom=sbom)
            if remote
            else build_image(experiment, push=push, cache_from=cache_from, cache_to=cache_to, sbom=sbom)
        )
        render.build(invocation.console, result)


@app.command()
def push(context: typer.Context) -> None:
    """Push the image to image.repository; print the digest that nodes will run.

    \b
    Example:
      $ hvdcloud push
    """
    from hvdcloud.cli import render
    from hvdcloud.lifecycle.build import push as push_image

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = push_image(experiment)
        render.build(invocation.console, result)


@app.command()
def up(
    context: typer.Context,
    nodes: Nodes = None,
    provider: Provider = None,
    bucket: Bucket = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact requests; change nothing.")] = False,
    yes: Yes = False,
) -> None:
    """Create the cluster: all nodes or none.

    \b
    Example:
      $ hvdcloud up --dry-run    # what would be asked for, and what it costs
      $ hvdcloud up --nodes 4 --yes
    """
    from hvdcloud.cli import render
    from hvdcloud.cluster.confirm_cost import Consent
    from hvdcloud.lifecycle import up as lifecycle

    invocation: Invocation = context.obj
    with invocation.context(nodes=nodes, provider=provider, checkpoints__bucket=bucket) as experiment:
        if dry_run:
            invocation.result = plan = lifecycle.plan_up(experiment)
            render.plan(invocation.console, plan)
        else:
            invocation.result = result = lifecycle.up(experiment, consent=Consent(given=yes))
            render.up(invocation.console, result)


@app.command()
def run(
    context: typer.Context,
    command: Command = None,
    ranks: Ranks = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait for its end.")] = False,
    down_when_done: Annotated[
        bool, typer.Option("--down-when-done", help="The nodes end themselves when the run has ended.")
    ] = False,
    fresh: Fresh = False,
    resume: Resume = None,
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
    from hvdcloud.cli import render
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
    with invocation.context(run__controller=controller) as experiment:
        meter = Meter()
        invocation.result = result = lifecycle.run(experiment, options, meter=meter)
        render.run(invocation.console, result)
        if down_when_done and not detach:
            from hvdcloud.lifecycle.launch import finish

            pulled, deleted, cost = finish(experiment, result, target=None, meter=meter)
            invocation.result = result = replace(result, cost=cost)
            render.pull(invocation.console, pulled)
            render.down(invocation.console, deleted, with_cost=False)
            render.cost(invocation.console, cost)
        result.raise_for_failure(pulled=down_when_done and not detach)


@app.command()
def logs(
    context: typer.Context,
    run: Run = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, metavar="K", help="Only the lines of this rank.")] = None,
) -> None:
    """Print a run's output, from any terminal.

    In an elastic run a line carries the rank that its worker had first, which stays when ranks are given out anew; a
    node that joins later may bring a number that is there already.

    \b
    Example:
      $ hvdcloud logs --follow
      $ hvdcloud logs --follow --rank 3
    """
    from hvdcloud.cli import render
    from hvdcloud.lifecycle import logs as lifecycle
    from hvdcloud.lifecycle.run import result_of

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        state = lifecycle.logs(experiment, run, follow_it=follow, rank=rank)
        invocation.result = result = result_of(experiment.name, state)
        if follow:
            render.ended(invocation.console, result)
            result.raise_for_failure()


@app.command()
def stop(context: typer.Context, run: Run = None) -> None:
    """End a run on every node; its checkpoints go to the bucket first.

    \b
    Example:
      $ hvdcloud stop
    """
    from hvdcloud.cli import render
    from hvdcloud.lifecycle import logs as lifecycle
    from hvdcloud.lifecycle.run import result_of

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = result_of(experiment.name, lifecycle.stop(experiment, run))
        render.ended(invocation.console, result)


@app.command()
def status(
    context: typer.Context,
    seconds: Annotated[
        float | None, typer.Argument(metavar="SECONDS", help="With --watch: how often to look; default: 2.", min=0.5)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on; Ctrl-C ends it.")] = False,
) -> None:
    """The cluster's nodes and runs.

    With `--watch` it is drawn anew in place on a terminal; elsewhere it is printed again whenever something changes.

    \b
    Example:
      $ hvdcloud status
      $ hvdcloud status --watch 5
      $ hvdcloud status --json | jq .result.cluster.worst_case_dollars
    """
    from hvdcloud.cli import render
    from hvdcloud.lifecycle.status import status as look
    from hvdcloud.lifecycle.watch import watch as go_on

    invocation: Invocation = context.obj
    if watch and invocation.console.as_json:
        raise UsageError("--watch has no end, and --json is one document", hint="hvdcloud status --json")
    if seconds is not None and not watch:
        raise UsageError("SECONDS says how often --watch looks", hint=f"hvdcloud status --watch {seconds:g}")
    with invocation.context() as experiment:
        if watch:
            go_on(experiment, every=seconds, show=render.status)
            return
        invocation.result = result = look(experiment)
        render.status(invocation.console, result)


@app.command()
def ssh(
    context: typer.Context,
    node: Annotated[str, typer.Argument(help="A node's name or index.")] = "0",
    command: Annotated[list[str] | None, typer.Argument(help="After `--`: what to run there.")] = None,
) -> None:
    """Into a node's container, with the pinned host key.

    \b
    Example:
      $ hvdcloud ssh 1
      $ hvdcloud ssh 0 -- nvidia-smi
    """
    from hvdcloud.lifecycle.ssh import ssh_argv

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        argv = ssh_argv(experiment, node, command or [])
    os.execv(argv[0], argv)


@app.command()
def pull(context: typer.Context, run: Run = None, to: To = None, bucket: Bucket = None) -> None:
    """Checkpoints from the bucket to this disk, each verified.

    \b
    Example:
      $ hvdcloud pull --to ~/checkpoints
    """
    from hvdcloud.cli import render
    from hvdcloud.lifecycle.pull import pull as fetch

    invocation: Invocation = context.obj
    with invocation.context(checkpoints__bucket=bucket) as experiment:
        invocation.result = result = fetch(experiment, run_id=run, target=to)
        render.pull(invocation.console, result)


@app.command()
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
    from hvdcloud.cli import render
    from hvdcloud.lifecycle.report import report as write

    invocation: Invocation = context.obj
    with invocation.context(checkpoints__bucket=bucket) as experiment:
        invocation.result = result = write(experiment, run_id=run, target=to)
        render.report(invocation.console, result)


@app.command()
def down(
    context: typer.Context,
    force: Annotated[bool, typer.Option("--force", help="Even if checkpoints are not on this disk.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Every cluster of this provider.")] = False,
    provider: Provider = None,
) -> None:
    """Delete everything that has the cluster's labels.

    \b
    Example:
      $ hvdcloud down
      $ hvdcloud down --all --provider gce    # whoever made them
    """
    from hvdcloud.cli import render
    from hvdcloud.lifecycle import down as lifecycle

    invocation: Invocation = context.obj
    if every:
        invocation.name = invocation.name or "all"
        with invocation.context(provider=provider) as experiment:
            results = lifecycle.down_all(experiment, force=force)
        invocation.result = results
        for result in results:
            render.down(invocation.console, result)
        if not results:
            invocation.console.answer("there is no cluster; nothing to delete")
        return
    with invocation.context(provider=provider) as experiment:
        invocation.result = result = lifecycle.down(experiment, force=force)
        render.down(invocation.console, result)


@app.command(name="list")
def list_clusters(context: typer.Context, provider: Provider = None) -> None:
    """Every cluster of this engine or project, also those that another machine made.

    \b
    Example:
      $ hvdcloud list --provider gce
    """
    from hvdcloud import providers
    from hvdcloud.cli import render
    from hvdcloud.cluster.state import as_known_here
    from hvdcloud.config.file import load_config

    invocation: Invocation = context.obj
    config = load_config(invocation.config, flags={"name": invocation.name or "any", "provider": provider})
    listing = providers.connect(config, on_retry=invocation.console.say).list()
    listing = replace(listing, clusters=tuple(map(as_known_here, listing.clusters)))
    invocation.result = listing.clusters
    render.clusters(invocation.console, listing)
    if listing.unseen:
        raise listing.unseen_error()


@app.command()
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
    from hvdcloud.cli import render
    from hvdcloud.lifecycle.launch import launch as live
    from hvdcloud.lifecycle.run import RunOptions

    invocation: Invocation = context.obj
    flags = {"nodes": nodes, "provider": provider, "checkpoints__bucket": bucket, "run__controller": controller}
    with invocation.context(**flags) as experiment:
        options = RunOptions(
            command=tuple(command or ()), ranks=ranks, down_when_done=True, timeline=timeline, autotune=autotune
        )
        invocation.result = result = live(experiment, options, target=to, confirmed=yes)
        render.launch(invocation.console, result)
        result.run.raise_for_failure(
            hint="its output is above, its checkpoints are here; mend it, then launch again", pulled=True
        )


@config_app.command()
def schema(context: typer.Context) -> None:
    """Print the JSON Schema of hvdcloud.yaml.

    \b
    Example:
      $ hvdcloud config schema > hvdcloud.schema.json
    """
    from hvdcloud.config.model import config_schema

    invocation: Invocation = context.obj
    invocation.console.raw_json(config_schema())
    invocation.console.as_json = False
