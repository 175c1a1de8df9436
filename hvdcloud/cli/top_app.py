"""The terminal of `top`: a head, a table of nodes and the log, as widgets of Textual.

Loading Textual takes longer than most commands do; `top` imports this file when it has something to draw on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, RichLog, Static

from hvdcloud.cli.screen import COLUMNS, harmless, head, rows
from hvdcloud.interrupts import SIGNALS

if TYPE_CHECKING:
    from hvdcloud.lifecycle.top import View

REDRAW_SECONDS = 0.5
_MOST_LINES = 1000


class TopApp(App[Exception]):
    """Draws views of a cluster until a key quits it; returns the error that ended it, if one did.

    Args:
        observe: returns what is known now, with each line of the log once; never waits.
    """

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    CSS = """
    Screen { overflow: hidden; }
    Static { width: 100%; text-wrap: nowrap; text-overflow: ellipsis; }
    DataTable { max-height: 50%; margin: 1 0; }
    RichLog { height: 1fr; min-height: 3; overflow-x: hidden; }
    DataTable, RichLog, DataTable > .datatable--header, DataTable > .datatable--hover {
        background: ansi_default; background-tint: transparent; color: ansi_default;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quits"),
        Binding("Q,ctrl+d", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("tab", "app.focus_next", "scrolls the log", key_display="tab"),
    ]

    def __init__(self, observe: Callable[[], View]) -> None:
        # The terminal's own colours; without the argument, NO_COLOR would make all of them black.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._observe = observe
        self._top = Static()
        self._table = DataTable[Text](cursor_type="none", classes="-ansi-scrollbar")
        self._output = RichLog(max_lines=_MOST_LINES, min_width=1, auto_scroll=False, classes="-ansi-scrollbar")
        self._run = ""
        """Whose log is shown."""

    def compose(self) -> ComposeResult:
        for label in COLUMNS:
            self._table.add_column(Text(label), key=label)
        yield from (self._top, self._table, self._output)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        self.set_interval(REDRAW_SECONDS, self._redraw)

    def on_resize(self) -> None:
        self.call_next(self._redraw)  # The app takes the new size after this.

    def _redraw(self) -> None:
        if not self.is_headless and not os.isatty(0):
            # The terminal is gone. Textual would read its end again and again, and wait forever to write to it.
            self.exit()
            return
        try:
            self._draw(self._observe())
        except Exception as error:  # noqa: BLE001 - Textual would print a traceback of its own; this is a bug like others
            self.exit(error)

    def _draw(self, view: View) -> None:
        self._top.update(head(view))
        found, table = rows(view), self._table
        if [key.value for key in table.rows] != list(found):
            table.clear()
            for name, cells in found.items():
                table.add_row(*cells, key=name)
        for name, cells in found.items():
            for column, old, new in zip(COLUMNS, table.get_row(name), cells, strict=True):
                if old != new:
                    table.update_cell(name, column, new, update_width=True)
        # The log's end stays in sight unless the user has scrolled back.
        if self._output.is_vertical_scroll_end:
            self._output.anchor()
        run = view.run.state.run if view.run is not None else ""
        if run != self._run:
            self._output.clear()
            self._run = run
        for line in view.log:
            self._output.write(harmless(line))


def run_until_quit(app: TopApp) -> None:
    """Draw until a key, Ctrl-C, a closed terminal or a `kill` ends it; the terminal is then as it was.

    Raises what ended it otherwise.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}

    async def run() -> Exception | None:
        for number in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, app.exit)
        return await app.run_async()

    try:
        error = asyncio.run(run())
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if error is not None:
        raise error
    if app.return_code:
        raise RuntimeError("Textual ended with the error above")
