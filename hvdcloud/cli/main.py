"""The entry point: which commands there are, exit codes, errors."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from functools import cache
from typing import TYPE_CHECKING, Any

import typer

from hvdcloud.cli import cluster, image, money, project, runs, setup, top
from hvdcloud.cli.app import Invocation, app
from hvdcloud.console import Console
from hvdcloud.errors import ExitCode, HvdcloudError, InterruptedByUserError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

# In the order of `hvdcloud --help`.
for _command in (
    project.init,
    image.build,
    image.push,
    cluster.up,
    runs.run,
    runs.logs,
    runs.stop,
    cluster.status,
    cluster.ssh,
    runs.pull,
    runs.report,
    cluster.down,
    cluster.list_clusters,
    runs.launch,
    money.offers,
    project.doctor,
    cluster.resize,
    setup.setup,
    top.top,
):
    app.command(name="list" if _command is cluster.list_clusters else None)(_command)
app.add_typer(project.config_app, name="config")
app.add_typer(money.prices_app, name="prices")

# Global options are taken anywhere before the user's command: `hvdcloud up --json` works as `hvdcloud --json up` does.
_GLOBAL_FLAGS = frozenset({"--json", "--quiet", "-q", "--verbose", "-v"})
_GLOBAL_VALUES = frozenset({"--config", "-c", "--name"})
# Their first word that is no option begins the user's command, as with `docker run`.
_TAKE_A_COMMAND = frozenset({"run", "launch"})


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of `ExitCode`."""
    # A closed terminal or a `kill` is handled as Ctrl-C is: `up` rolls back, `run` detaches.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    code = _run(hoist_globals(list(sys.argv[1:] if argv is None else argv)))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    # Not sys.exit: it waits for threads, and a download that Ctrl-C cancelled would continue to its end.
    os._exit(int(code))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def hoist_globals(argv: list[str]) -> list[str]:
    """Move global options to the front; the user's command stays, behind a `--` of its own."""
    front: list[str] = []
    rest: list[str] = []
    words = iter(argv)
    command = ""  # Whose next word that is no option is the user's.
    for word in words:
        if word == "--":
            return [*front, *(["ssh", "0"] if rest == ["ssh"] else rest), word, *words]
        if word in _GLOBAL_FLAGS or ("=" in word and word.partition("=")[0] in _GLOBAL_VALUES):
            front.append(word)
        elif word in _GLOBAL_VALUES:
            front += [word, *_next(words)]
        elif command and word.startswith("-"):
            rest += [word, *(_next(words) if word in _options_with_values(command) else [])]
        elif command:
            return [*front, *rest, "--", word, *words]
        else:
            command = word if word in _TAKE_A_COMMAND and not rest else ""
            rest.append(word)
    return [*front, *rest]


def _next(words: Iterator[str]) -> list[str]:
    return [word for word in (next(words, None),) if word is not None]


@cache
def _options_with_values(command: str) -> frozenset[str]:
    """The options of a command that are followed by a value."""
    group: Any = typer.main.get_command(app)
    parameters = group.commands[command].params
    return frozenset(name for each in parameters if not getattr(each, "is_flag", False) for name in each.opts)


def _run(argv: list[str]) -> ExitCode:
    # The parser refuses some things before the options are known; they are reported the same way.
    own = argv[: argv.index("--")] if "--" in argv else argv
    invocation = Invocation(console=Console(as_json="--json" in own))
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
        # Nothing reads the output any more (`hvdcloud logs | head`); keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:  # noqa: BLE001 - the last line of defence: anything else is a bug of hvdcloud
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
