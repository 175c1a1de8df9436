"""Whether the program takes a command line, which is not run."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from hvdcloud.cli.app import Invocation
from hvdcloud.cli.main import command_line


def check_command_line(words: Sequence[str]) -> None:
    """Raises click's error: hvdcloud takes no such words after its name."""
    left = list(words)
    command = root = command_line()
    while hasattr(command, "commands"):
        command = command.commands[left.pop(0)]
    command.make_context(command.name, left, parent=typer.Context(root, obj=Invocation()))
