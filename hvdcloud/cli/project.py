"""The commands about a project as a whole: init, doctor, config schema; and how their results are shown."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hvdcloud.cli import complete
from hvdcloud.cli.app import Bucket, Invocation, Provider

if TYPE_CHECKING:
    from hvdcloud.checks import Status
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.doctor import Examination

config_app = typer.Typer(help="The configuration file.", no_args_is_help=True, rich_markup_mode=None)

_ARROW, _PLAIN_ARROW = "→", "->"
# Status → sign, word where the terminal has no such sign, colour.
_SIGNS = {
    "ok": ("✓", "ok", "green"),
    "warning": ("!", "!", "yellow"),
    "failed": ("✗", "FAILED", "red"),
    "unknown": ("?", "?", "yellow"),
}


def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new project's folder.")] = Path(),
    template: Annotated[
        str,
        typer.Option(
            metavar="TEMPLATE",
            help="The template: torch, keras, torch-elastic or keras-elastic.",
            autocompletion=complete.templates,
        ),
    ] = "torch",
) -> None:
    """Write a project that runs as it is: hvdcloud.yaml, train.py, requirements.txt.

    \b
    Example:
      $ hvdcloud init digits --template keras
    """
    from hvdcloud.lifecycle.init import init as write_project

    invocation: Invocation = context.obj
    invocation.result = result = write_project(folder, template=template, name=invocation.name)
    for name in result.files:
        invocation.console.answer(f"wrote {folder / name}")
    go = f"cd {folder} && " if folder != Path() else ""
    invocation.console.answer(f"next: {go}hvdcloud launch")


def doctor(
    context: typer.Context,
    nodes: Annotated[int | None, typer.Option("--nodes", "-n", metavar="N", help="The number of nodes.")] = None,
    provider: Provider = None,
    bucket: Bucket = None,
) -> None:
    """Check everything that a run needs, before money is spent.

    Nothing is changed.

    ✓ passed, ! is a warning, ✗ has to be fixed (the next line says how), ? could not be checked.
    It exits with 0 if a run is possible, else with the code of the first ✗: 2 configuration, 3 credentials,
    permissions or an API, 4 quota, 5 engine or network, 6 image.

    \b
    Example:
      $ hvdcloud doctor
      $ hvdcloud doctor --provider gce --nodes 16
      $ hvdcloud doctor --json | jq .result.checks
    """
    from hvdcloud.lifecycle.doctor import doctor as run_checks

    invocation: Invocation = context.obj
    with invocation.context({"nodes": nodes, "provider": provider, "checkpoints.bucket": bucket}) as experiment:
        invocation.result = result = run_checks(experiment)
    invocation.exit_code = result.exit_code
    _show_checks(invocation.console, result)


def _show_checks(console: Console, result: Examination) -> None:
    """A line per check; below each that did not pass, its details and how to fix it."""
    fancy = console.can_print("".join(sign for sign, _, _ in _SIGNS.values()) + _ARROW)

    def sign(status: Status) -> str:
        return _SIGNS[status.value][0 if fancy else 1]

    first = max(len(sign(check.status)) for check in result.checks)
    second = max(len(check.name) for check in result.checks)
    indent = " " * (first + second + 4)
    for check in result.checks:
        head = f"{sign(check.status):{first}}  {check.name:{second}}  "
        colour = "" if check.status.value == "ok" else _SIGNS[check.status.value][2]
        _print(console, head, check.message, indent=indent, style=colour)
        for line in check.details.splitlines():
            _print(console, indent, line, indent=indent)
        if check.hint:
            arrow = f"{_ARROW if fancy else _PLAIN_ARROW} "
            _print(console, indent + arrow, check.hint, indent=indent + " " * len(arrow), style="cyan")
    counts = {status: sum(check.status.value == status for check in result.checks) for status in _SIGNS}
    words = {"ok": "passed", "warning": "warnings" if counts["warning"] > 1 else "warning"}
    said = ", ".join(f"{count} {words.get(status, status)}" for status, count in counts.items() if count)
    console.answer(f"{len(result.checks)} checks in {result.seconds:.1f} s: {said}")


def _print(console: Console, head: str, text: str, *, indent: str, style: str = "") -> None:
    """Wrapped to the terminal's width; elsewhere a line stays a line."""
    if not console.can_print(text):
        text = text.replace("…", "...").replace("→", "->").encode("ascii", "replace").decode()
    lines = [text]
    if console.width is not None and console.width > len(indent) + 20:
        width = console.width - len(indent) - 1
        # A command to copy is broken between words only.
        lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
    for number, line in enumerate(lines):
        console.answer(f"{head if number == 0 else indent}{line}", style=style)


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
