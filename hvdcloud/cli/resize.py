"""The command `resize`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli.commands import Yes
from hvdcloud.cli.main import Invocation, app
from hvdcloud.units import dollars, seconds

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.resize import ResizeResult


@app.command()
def resize(
    context: typer.Context,
    nodes: Annotated[int, typer.Argument(min=1, metavar="N", help="How many nodes the cluster is to have.")],
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Delete nodes even if checkpoints of theirs are not in the bucket.")
    ] = False,
) -> None:
    """Add nodes to the cluster or take the last ones away, between runs or during an elastic run.

    With the number that it has, nodes that are gone or stopped are made anew. The head always stays.

    \b
    Example:
      $ hvdcloud resize 4
      $ hvdcloud resize 2    # the checkpoints of the other two go to the bucket first
    """
    from hvdcloud.cluster.confirm_cost import Consent
    from hvdcloud.lifecycle.resize import resize as change

    invocation: Invocation = context.obj
    with invocation.context() as experiment:
        invocation.result = result = change(experiment, nodes, consent=Consent(given=yes), force=force)
        _render(invocation.console, result)


def _render(console: Console, result: ResizeResult) -> None:
    if not result.changed:
        console.answer(f"cluster {result.cluster} has {result.nodes} node(s), and all of them run; nothing to do")
    else:
        changes = [f"made {', '.join(result.made)}"] if result.made else []
        changes += [f"deleted {', '.join(result.removed)}"] if result.removed else []
        cost = ""
        if result.dollars_per_hour or result.dollars_per_hour_before:
            cost = f"; {dollars(result.dollars_per_hour_before)}/h before, {dollars(result.dollars_per_hour)}/h now"
        console.answer(
            f"cluster {result.cluster} has {result.nodes} node(s) after {seconds(result.seconds)}: "
            f"{'; '.join(changes)}{cost}"
        )
        if result.run and result.made:
            console.answer(f"run {result.run} takes them in as soon as they are prepared")
    if result.note:
        console.answer(result.note)
