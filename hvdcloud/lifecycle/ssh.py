"""`hvdcloud ssh`: into a node's container, with the pinned host key."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvdcloud.errors import NodeError, UsageError

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context


def ssh_argv(context: Context, node: str, command: Sequence[str]) -> list[str]:
    """The OpenSSH command line, to be executed in place of this process.

    Args:
        node: its name or index.
        command: several words, or one text for the node's shell; it starts in /workspace, as that does.

    Raises:
        UsageError: no such cluster or node, or no ssh on this machine.
        NodeError: the node does not run.
    """
    argv = _argv(context, node)
    if not command:
        return argv
    text = command[0] if len(command) == 1 else shlex.join(command)
    # ssh takes what follows the host's name for options of its own, as long as it begins with a dash: this does not.
    return [*argv, f"cd /workspace 2>/dev/null; {text}"]


def forward_argv(context: Context, port: int) -> list[str]:
    """The OpenSSH command line that leads a port of this machine to the head's; raises as `ssh_argv`."""
    return _argv(context, "0", ["-N", "-o", "ExitOnForwardFailure=yes", "-L", f"{port}:localhost:{port}"])


def _argv(context: Context, node: str, options: Sequence[str] = ()) -> list[str]:
    cluster = context.cluster()
    context.record(cluster)
    found = next((each for each in cluster.nodes if node in (each.name, str(each.index))), None)
    if found is None:
        hint = f"one of: {', '.join(each.name for each in cluster.nodes)}"
        raise UsageError(f"cluster {cluster.name} has no node {node}", hint=hint)
    if found.address is None and found.proxy_command is None:
        raise NodeError(f"node {found.name} is {found.state.value}", hint=f"hvdcloud status --name {context.name}")
    program = shutil.which("ssh")
    if program is None:
        raise UsageError("there is no ssh on this machine", hint="install the OpenSSH client")
    return [program, "-F", str(context.state.ssh_config), *options, found.name]
