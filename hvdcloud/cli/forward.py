"""The command forward."""

from __future__ import annotations

from typing import Annotated

import typer

from hvdcloud.cli import complete
from hvdcloud.cli.app import Invocation
from hvdcloud.errors import UsageError


def forward(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PORT|NODE",
            help="Ports of the node, or LOCAL:REMOTE; then the node's name or index, without one the head.",
            autocompletion=complete.nodes,
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", help="Open the first port in the browser once it answers.")
    ] = False,
) -> None:
    """Show a node's TensorBoard or Jupyter at localhost.

    Each port of this machine leads to one of the node, over the connection whose host key was pinned, until Ctrl-C.
    Only programs of this machine can use it.

    \b
    Example:
      $ hvdcloud forward 6006 --open    # TensorBoard of the head
      $ hvdcloud forward 8889:8888 1    # Jupyter of node 1 at localhost:8889
    """
    from hvdcloud.lifecycle.forward import forward as lifecycle

    invocation: Invocation = context.obj
    if invocation.console.as_json:
        raise UsageError("forward has no end, and --json is one document", hint="hvdcloud forward without --json")
    with invocation.context() as experiment:
        lifecycle(experiment, words or [], open_browser=open_browser)
