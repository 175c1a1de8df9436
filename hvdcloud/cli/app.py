"""The `hvdcloud` application: its global options, and what its commands have in common.

A command is a function in one of the files beside this one: its arguments, one call, and how the result looks;
`main.py` lists them all. Libraries are imported inside the command that needs them.

A command's docstring is what `--help` shows. Its first line is for the list of all commands; it ends with an example: a
paragraph that begins with a backslash and a b, so that its lines stay as they are, then `Example:` and one to three
lines `  $ hvdcloud …`, each with a comment where the options do not speak for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hvdcloud import __version__
from hvdcloud.cluster.files import state_root
from hvdcloud.console import Console
from hvdcloud.errors import ExitCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hvdcloud.config.file import Loaded
    from hvdcloud.lifecycle.context import Context

Nodes = Annotated[int | None, typer.Option("--nodes", "-n", metavar="N", help="The number of nodes.")]
Provider = Annotated[str | None, typer.Option(metavar="PROVIDER", help="The provider: local, ssh or gce.")]
Bucket = Annotated[str | None, typer.Option(metavar="BUCKET", help="The bucket: gs://BUCKET[/PREFIX] or file:///DIR.")]


def _duration(text: str | float) -> float:
    from hvdcloud.config.types import parse_duration

    try:
        value: Any = parse_duration(text)
        return float(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


Wait = Annotated[
    float,
    typer.Option(
        parser=_duration,
        metavar="DURATION",
        help="Wait this long for room: 6h.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

app = typer.Typer(
    name="hvdcloud",
    help="Take a training script to N machines and back: nothing is left billing, no checkpoint is lost.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@dataclass(slots=True)
class Invocation:
    """The global options of this command (`keep` sets them), and its result."""

    config: Path | None = None
    name: str | None = None
    console: Console = field(default_factory=Console)
    command: str = ""
    result: object = None
    exit_code: ExitCode = ExitCode.OK

    def set(self, option: str, value: Any) -> None:
        """Take a global option."""
        setattr(self if option in ("config", "name") else self.console, option, value)

    def load(self, flags: Mapping[str, object] | None = None, *, default_name: str | None = None) -> Loaded:
        """What hvdcloud.yaml, the environment and these flags say, and where each value was written.

        Args:
            flags: by configuration key; None leaves the key to the environment and the file.
            default_name: the cluster's name where `--name` gives none; None: the file has to name it.

        Raises:
            UsageError: they are not valid.
        """
        from hvdcloud.config.file import load

        loaded = load(self.config, flags={"name": self.name or default_name, **(flags or {})})
        # What this folder's file or the environment says, the next command says too.
        if self.config is None and self.name is None and default_name is None:
            self.console.named_here = loaded.config.name
        return loaded

    def context(
        self,
        flags: Mapping[str, object] | None = None,
        *,
        default_name: str | None = None,
        bucket: str | None = None,
    ) -> Context:
        """The experiment that hvdcloud.yaml, the environment and these flags describe.

        Args:
            flags, default_name: as for `load`.
            bucket: read instead of the configured one, whatever provider that is for.

        Raises UsageError: they are not valid.
        """
        from hvdcloud.lifecycle.context import Context

        given = [key for key, value in (flags or {}).items() if value is not None]
        config = self.load(flags, default_name=default_name).config
        only_own = self.name is None and default_name is None
        return Context(config, self.console, flags=given, only_own=only_own, bucket=bucket)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hvdcloud {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="Read this file instead of hvdcloud.yaml."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Use this cluster instead of the file's.",
            autocompletion=lambda: sorted(file.parent.name for file in state_root().glob("*/cluster.json")),
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no progress.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print more progress, and the details of errors.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options that every command takes."""
    context.obj.command = context.invoked_subcommand or ""


GLOBAL = ("config", "name", "as_json", "quiet", "verbose")
"""The options above that may also stand after the command's name."""


def keep(context: typer.Context, parameter: Any, value: Any) -> None:
    """Keep the value of a global option, before or after the command's name."""
    if value not in (None, False):
        context.ensure_object(Invocation).set(parameter.name, value)
