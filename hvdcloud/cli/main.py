"""The entry point: which commands there are, exit codes, errors."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from hvdcloud.cli import cluster, image, offers, project, runs, setup, status
from hvdcloud.cli.app import GLOBAL, Invocation, app, keep
from hvdcloud.errors import ExitCode, HvdcloudError, InterruptedByUserError, OutputClosedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order of `hvdcloud --help`, by its headings.
_COMMANDS = {
    "Start": (project.init, project.doctor, runs.launch, project.config_app),
    "Run": (cluster.up, runs.run, cluster.resize, image.build, image.push),
    "Look": (
        *(status.status, status.top, runs.logs, runs.stacks, runs.report, runs.history),
        *(cluster.list_clusters, cluster.ssh, cluster.forward),
    ),
    "Clean up": (runs.stop, runs.pull, cluster.down),
    "Cloud": (setup.setup, offers.offers),
}
_NAMES: dict[object, str] = {cluster.list_clusters: "list", project.config_app: "config"}


class CommandLine(TyperGroup):
    """Commands whose help is in groups, and is what the name alone prints."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            args = ["--help"]
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """A section for each group, with the first sentence of each command's help, whole."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            first = command.get_short_help_str(limit=sys.maxsize)
            sections.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append((name, first))
        width = max(map(len, self.commands))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), first) for name, first in rows])


app.info.cls = CommandLine
for _group, _commands in _COMMANDS.items():
    for _command in _commands:
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_NAMES[_command], cls=CommandLine, rich_help_panel=_group)
        else:
            app.command(
                name=_NAMES.get(_command),
                rich_help_panel=_group,
                # The user's command begins at its first word that is no option, as with `docker run`.
                context_settings={"allow_interspersed_args": _command not in (runs.run, runs.launch, cluster.ssh)},
            )(_command)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of `ExitCode`."""
    # A closed terminal or a `kill` is handled as Ctrl-C is: `up` rolls back, `run` detaches.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    # A standard stream that is closed is None. In its place, what is opened next would be written to.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A character that the terminal's encoding lacks is no reason to fail; standard error begins that way.
        sys.stdout.reconfigure(errors="backslashreplace")
    silence_libraries()
    # A program of the working folder is never run: that may be a project which was cloned from anywhere.
    if "PATH" in os.environ:
        os.environ["PATH"] = os.pathsep.join(filter(os.path.isabs, os.environ["PATH"].split(os.pathsep)))
    code = _run(list(sys.argv[1:] if argv is None else argv))
    if code is ExitCode.INTERRUPTED:
        # Python would wait for threads, and a download that Ctrl-C has cancelled would continue to its end.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def silence_libraries() -> None:
    """Keep warnings of libraries that a user can do nothing about off the screen."""
    # google-auth's, at each command, of a login without a quota project; an API that wants one says so itself.
    warnings.filterwarnings("ignore", message="Your application has authenticated using end user credentials")
    # requests silences it while it is imported, unless google-auth restores the filters meanwhile in another thread.
    warnings.filterwarnings("ignore", message="SOCKS support in urllib3")


def command_line() -> Any:
    """What parses and calls the commands. Each takes the global options, too; only the help of all shows them."""
    root: Any = typer.main.get_command(app)
    shared = []
    for option in root.params:
        if option.name in GLOBAL:
            option.callback, option.expose_value = keep, False
            shared.append(copy.copy(option))
            shared[-1].hidden = True
    _add(shared, root)
    return root


def _add(options: list[Any], group: CommandLine) -> None:
    for command in group.commands.values():
        command.params += options
        if isinstance(command, CommandLine):
            _add(options, command)


def _run(argv: list[str]) -> ExitCode:
    invocation = Invocation()
    try:
        return _answered(argv, invocation)
    except OutputClosedError as error:
        # Nothing reads the output any more (`hvdcloud logs | head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.message:
            invocation.console.error(error)
        return error.code


def _answered(argv: list[str], invocation: Invocation) -> ExitCode:
    try:
        Path.cwd()
    except OSError:
        return _failed(invocation, UsageError("this working folder was deleted", hint="cd to one that exists"))
    try:
        code = command_line()(argv, standalone_mode=False, obj=invocation, prog_name="hvdcloud")
        if code == ExitCode.INTERRUPTED:  # Typer makes KeyboardInterrupt into this.
            return _failed(invocation, after_interrupt(invocation.command))
        if isinstance(code, int) and code:
            return ExitCode(code)
    except typer.TyperException as error:
        # The parser may have refused something before it came to this option.
        if "--json" in argv:
            invocation.set("as_json", True)
        return _failed(invocation, UsageError(error.format_message(), hint=_usage_hint(error, invocation.command)))
    except OutputClosedError:
        raise
    except HvdcloudError as error:
        return _failed(invocation, error)
    except (KeyboardInterrupt, typer.Abort):
        return _failed(invocation, after_interrupt(invocation.command))
    except (BrokenPipeError, SystemExit) as error:  # Of a page of help; Typer makes the first into the second.
        if isinstance(error, SystemExit) and not error.code:
            return ExitCode.OK  # What the shell completes has been said.
        raise OutputClosedError("", hint="") from None
    except Exception as error:  # noqa: BLE001 - the last line of defence: anything else is a bug of hvdcloud
        return _failed(invocation, _bug(error, verbose=invocation.console.verbose))
    invocation.console.document(invocation.command, result=invocation.result, exit_code=invocation.exit_code)
    return invocation.exit_code


def _usage_hint(error: typer.TyperException, command: str) -> str:
    hint = " ".join(filter(None, ["hvdcloud", command, "--help"]))
    if type(error).__name__ != "NoSuchOption" or command not in ("run", "launch"):
        return hint
    return f"{hint}; an option of your own script comes after it: hvdcloud {command} python train.py --epochs 2"


def after_interrupt(command: str) -> InterruptedByUserError:
    """What is said after Ctrl-C in a command that says nothing of it itself."""
    return InterruptedByUserError(
        f"{command or 'hvdcloud'} is stopped", hint="the same command continues; hvdcloud list shows what there is"
    )


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
