"""The `hvdcloud` command: global options, exit codes, errors.

Everything slow to load is imported inside the command that needs it: `hvdcloud --help` loads Typer and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hvdcloud import __version__
from hvdcloud.console import Console
from hvdcloud.errors import ExitCode, HvdcloudError, InterruptedByUserError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from hvdcloud.lifecycle.context import Context

app = typer.Typer(
    name="hvdcloud",
    help="From a training script on this machine to N machines and back: nothing left billing, no checkpoint lost.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
config_app = typer.Typer(help="The configuration file.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config_app, name="config")

# Global options are taken anywhere before `--`, so that `hvdcloud up --json` works as `hvdcloud --json up` does.
_GLOBAL_FLAGS = frozenset({"--json", "--quiet", "-q", "--verbose", "-v"})
_GLOBAL_VALUES = frozenset({"--config", "-c", "--name"})


@dataclass(slots=True)
class Invocation:
    """The global options, and what the command came to."""

    config: Path | None = None
    name: str | None = None
    console: Console = field(default_factory=Console)
    command: str = ""
    result: object = None
    exit_code: ExitCode = ExitCode.OK

    def context(self, **flags: object) -> Context:
        """The experiment that hvdcloud.yaml, the environment and these flags describe.

        Raises:
            UsageError: they do not describe one.
        """
        from hvdcloud.config.file import load_config
        from hvdcloud.lifecycle.context import Context

        named = {key.replace("__", "."): value for key, value in flags.items()}
        return Context(load_config(self.config, flags={"name": self.name, **named}), self.console)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hvdcloud {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="The configuration file.", show_default="hvdcloud.yaml")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The cluster's name, instead of the file's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="More progress.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options that every command takes."""
    invocation = context.obj
    invocation.config, invocation.name = config, name
    invocation.console = Console(as_json=as_json, quiet=quiet, verbose=verbose)
    invocation.command = context.invoked_subcommand or ""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of `ExitCode`."""
    # A closed terminal or a `kill` is handled as Ctrl-C is: `up` rolls back, `run` detaches.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    code = _run(hoist_globals(list(sys.argv[1:] if argv is None else argv)))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Not sys.exit: it waits for threads, and a download that Ctrl-C gave up would go on until its file is there.
    os._exit(int(code))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def hoist_globals(argv: list[str]) -> list[str]:
    """Move global options to the front; what follows `--` belongs to the user's command and stays."""
    end = argv.index("--") if "--" in argv else len(argv)
    front: list[str] = []
    rest: list[str] = []
    words = iter(argv[:end])
    for word in words:
        if word in _GLOBAL_FLAGS or ("=" in word and word.partition("=")[0] in _GLOBAL_VALUES):
            front.append(word)
        elif word in _GLOBAL_VALUES:
            front += [word, *([value] if (value := next(words, None)) is not None else [])]
        else:
            rest.append(word)
    if rest == ["ssh"] and end < len(argv):
        rest.append("0")  # `ssh -- CMD`: the head, not a node called CMD.
    return [*front, *rest, *argv[end:]]


def load_commands() -> None:
    """Register every command with `app`."""
    from hvdcloud.cli import commands, money, project, resize, setup, top  # noqa: F401 - registers the commands


def _run(argv: list[str]) -> ExitCode:
    load_commands()
    # What the parser itself refuses comes before the options are known, and is reported the same way.
    invocation = Invocation(console=Console(as_json="--json" in argv))
    try:
        code = app(argv, standalone_mode=False, obj=invocation, prog_name="hvdcloud")
        if code == ExitCode.INTERRUPTED:  # Typer makes KeyboardInterrupt into this.
            return _interrupted(invocation)
        if isinstance(code, int) and code:
            return ExitCode(code)
    except typer.TyperException as error:
        command = f" {invocation.command}" if invocation.command else ""
        return _failed(invocation, UsageError(error.format_message(), hint=f"hvdcloud{command} --help"))
    except HvdcloudError as error:
        return _failed(invocation, error)
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted(invocation)
    except (BrokenPipeError, SystemExit):  # Typer makes the first into the second.
        # The reader of our output is gone (`hvdcloud logs | head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the last line of defence: whatever is left is a bug of ours
        return _failed(invocation, _bug(error, verbose=invocation.console.verbose))
    invocation.console.document(invocation.command, result=invocation.result, exit_code=invocation.exit_code)
    return invocation.exit_code


def _interrupted(invocation: Invocation) -> ExitCode:
    return _failed(invocation, InterruptedByUserError("interrupted", hint="hvdcloud list shows what there is"))


def _failed(invocation: Invocation, error: HvdcloudError) -> ExitCode:
    from hvdcloud.interrupts import stay_uninterrupted

    # Only the message is still to be printed; a second Ctrl-C would print a traceback instead.
    stay_uninterrupted()
    result: Any = getattr(error, "result", None) or invocation.result
    invocation.console.error(error)
    invocation.console.document(invocation.command, result=result, exit_code=error.code, error=error)
    return error.code


def _bug(error: Exception, *, verbose: bool) -> HvdcloudError:
    import traceback

    lines = traceback.format_exception(error)
    return HvdcloudError(
        f"a bug in hvdcloud: {type(error).__name__}: {error}",
        hint="please report it with the output of the same command with --verbose; "
        "hvdcloud list shows what runs, hvdcloud down deletes it",
        details="".join(lines if verbose else lines[-2:]),
    )
