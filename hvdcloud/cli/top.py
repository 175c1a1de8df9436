"""`top`: a live screen, and its keys."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

import typer

from hvdcloud.cli.app import Invocation
from hvdcloud.console import is_dumb
from hvdcloud.errors import HvdcloudError, UsageError

if TYPE_CHECKING:
    from hvdcloud.console import Console
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.lifecycle.top import Observer

REDRAW_SECONDS = 0.5
_QUIT = {"q", "Q", "\x04"}


def top(context: typer.Context) -> None:
    """A live screen of the cluster: nodes, CPUs and GPUs, the run and its log, uploads, money.

    Keys: `q` quits, `l` shows or hides the log, `s` stops the run after a question. Quitting changes nothing.

    \b
    Example:
      $ hvdcloud top
    """
    from hvdcloud.lifecycle.top import Observer

    invocation: Invocation = context.obj
    console = invocation.console
    instead = "hvdcloud status --watch, or hvdcloud status --json for programs"
    if not console.is_screen:
        raise UsageError("top needs a terminal", hint=instead)
    if is_dumb():
        raise UsageError(f"top draws with escape codes, which TERM={os.environ['TERM']} has none of", hint=instead)
    with invocation.context() as experiment:
        cluster = experiment.cluster()
        # Progress, such as that a request is repeated, would be printed into the screen.
        quiet, console.quiet = console.quiet, True
        try:
            with Observer(experiment, cluster) as observer, contextlib.suppress(KeyboardInterrupt):
                _Screen(console, observer, experiment).run()
        finally:
            console.quiet = quiet
    console.answer(f"cluster {cluster.name} stays as it is; hvdcloud down deletes it")


class _Screen:
    """Draws what the observer sees on a terminal until a key quits it; may stop the context's run."""

    def __init__(self, console: Console, observer: Observer, context: Context) -> None:
        self._console = console
        self._observer = observer
        self._context = context
        self._log = True
        self._question: str | None = None  # The run to stop, if the answer is yes.
        self._message = ""
        self._blocks = console.can_print("█░▏…°")

    def run(self) -> None:
        from rich.console import Console as RichConsole
        from rich.console import Group
        from rich.live import Live

        from hvdcloud.cli.screen import Looks, draw

        rich = RichConsole()
        with (
            _keys_at_once(self._console.keyboard) as descriptor,
            Live(console=rich, screen=True, auto_refresh=False, transient=True, vertical_overflow="crop") as live,
        ):
            while True:
                width, height = rich.size
                message = self._asking or self._message
                looks = Looks(width=width, height=height, blocks=self._blocks, log=self._log, message=message)
                live.update(Group(*draw(self._observer.view(), looks)), refresh=True)
                ready, _, _ = select.select([descriptor], [], [], REDRAW_SECONDS)
                if ready and not self._press(os.read(descriptor, 64).decode(errors="replace")):
                    return

    @property
    def _asking(self) -> str:
        return f"stop run {self._question}? Its checkpoints are kept. y/n" if self._question else ""

    def _press(self, keys: str) -> bool:
        """Do what the keys ask for; False: quit."""
        if not keys:
            return False  # The terminal is gone.
        for key in keys:
            if self._question is not None:
                run, self._question = self._question, None
                if key in "yY":
                    threading.Thread(target=self._stop, args=(run,), daemon=True).start()
                continue
            self._message = ""
            if key in _QUIT:
                return False
            if key in "lL":
                self._log = not self._log
            elif key in "sS":
                run_view = self._observer.view().run
                if run_view is not None and run_view.goes_on:
                    self._question = run_view.run
                else:
                    self._message = "there is no run to stop"
        return True

    def _stop(self, run: str) -> None:
        from hvdcloud.lifecycle.logs import stop

        self._message = f"stopping run {run} …"
        try:
            # Over a connection of its own, and through a client of its own.
            with self._context.of(self._context.name) as experiment:
                stop(experiment, run)
        except HvdcloudError as error:
            self._message = f"{error.message}; {error.hint}"
        except Exception as error:  # noqa: BLE001 - it would end the thread silently
            self._message = f"run {run} could not be stopped: {type(error).__name__}: {error}"
        else:
            self._message = f"run {run} has ended"


@contextlib.contextmanager
def _keys_at_once(keyboard: TextIO) -> Iterator[int]:
    """Read keys as they are pressed, without echo; Ctrl-C still interrupts. Yields the descriptor to read from."""
    import termios
    import tty

    descriptor = keyboard.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
