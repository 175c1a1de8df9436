"""The command `stacks`, and how stacks are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.app import Invocation
from hvdcloud.cli.runs import Run
from hvdcloud.units import some

if TYPE_CHECKING:
    from hvdcloud.lifecycle.stacks import StacksResult
    from hvdcloud.runs.stacks import Frame, Group, RankStacks, Thread


def stacks(
    context: typer.Context,
    run: Run = None,
    threads: Annotated[
        bool, typer.Option("--threads", help="Every thread of every process, not the main thread alone.")
    ] = False,
) -> None:
    """Show where every rank is: its calls in Python and native code.

    Ranks at the same place are shown once, with the deepest line of your own code first. The run continues; each rank
    stops for a moment. Of a run that was ended because it was stuck, the stacks of that moment are shown.

    \b
    Example:
      $ hvdcloud stacks
      $ hvdcloud stacks --threads 20261121-101112-abcdef
    """
    from hvdcloud.lifecycle.stacks import stacks as take

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = take(experiment, run)
        for failure in result.failed:
            experiment.console.warn(failure)
        for line in shown(result, threads=threads):
            experiment.console.answer(line)


def shown(result: StacksResult, *, threads: bool) -> Iterator[str]:
    """The lines of a result."""
    at = f"when it was stuck, {time.strftime('%H:%M:%S', time.localtime(result.taken))}" if result.taken else "now"
    yield f"run {result.run}, {at}:"
    by_rank = {each.rank: each for each in result.ranks}
    for group in result.groups:
        members = [by_rank[rank] for rank in group.ranks]
        yield ""
        yield f"{group.text}{_on(members)}"
        yield from _of_group(group, members, threads=threads)


def _on(members: Sequence[RankStacks]) -> str:
    nodes = list(dict.fromkeys(member.node for member in members if member.node))
    return f", on {some(nodes, most=4)}" if nodes else ""


def _of_group(group: Group, members: Sequence[RankStacks], *, threads: bool) -> Iterator[str]:
    main = members[0].trains.main
    if main is None:
        yield from (f"  {line}" for line in group.lines)
    else:
        yield from _calls(main.frames)
    if not threads:
        return
    for member in members:
        for process in member.processes:
            yield f"  rank {member.rank}, process {process.pid}: {process.command or '?'}"
            if process.problem:
                yield f"    {process.problem}"
            for thread in process.threads:
                yield f"    {_name(thread)}"
                yield from (f"    {line}" for line in _calls(thread.frames))


def _name(thread: Thread) -> str:
    return f"thread {thread.name or '?'}" + ("" if thread.frames else ": no Python")


def _calls(frames: Sequence[Frame]) -> Iterator[str]:
    """From the deepest line of the user's own code inwards, then who has called that."""
    own = next((at for at, frame in enumerate(frames) if frame.own), len(frames) - 1)
    for frame in reversed(frames[: own + 1]):
        yield f"  {frame.place} in {frame.name}"
    outer = [frame for frame in frames[own + 1 :] if not frame.native]
    for frame in outer:
        yield f"    called from {frame.place} in {frame.name}"
