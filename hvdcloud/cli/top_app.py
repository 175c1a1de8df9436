"""The terminal of `top`, drawn with Textual: what scrolls, its keys, and the mouse.

Loading Textual takes longer than most commands do; `top` imports this file when it has something to draw on.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer

from hvdcloud.cli.screen import SCROLLBAR, Drawing, Looks, draw
from hvdcloud.interrupts import SIGNALS
from hvdcloud.visible import visible

if TYPE_CHECKING:
    from hvdcloud.lifecycle.top import View

REDRAW_SECONDS = 0.5


class Lines(ScrollView, can_focus=False):
    """Lines of text, of which it shows those in its height; the wheel scrolls to the others.

    Args:
        follow: the last lines are shown, until the user scrolls back.
    """

    def __init__(self, *, follow: bool = False) -> None:
        super().__init__(classes="-ansi-scrollbar")
        self._follow = follow
        self._lines: Sequence[Text] = ()

    def show(self, lines: Sequence[Text], *, height: int) -> None:
        """Show these lines from now on, on this many rows, scrolled as far as before."""
        at_end = self._follow and (not self.display or self.scroll_y >= self.max_scroll_y)
        self.styles.height = height
        self.display = height > 0
        if lines != self._lines:
            self._lines = lines
            self.virtual_size = Size(1, len(lines))
            self.refresh()
        if at_end:
            self.call_after_refresh(self.scroll_end, animate=False)

    def render_line(self, y: int) -> Strip:
        number = self.scroll_offset.y + y
        width = self.scrollable_content_region.width
        if number >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        # Names, reasons and events are a node's words.
        drawn = self._lines[number].render(self.app.console)
        segments = [segment._replace(text=visible(segment.text, lines=False)) for segment in drawn]
        return Strip(segments).adjust_cell_length(width, self.rich_style).apply_style(self.rich_style)


class Question(ModalScreen[bool]):
    """A question in the line of the keys; every key but `y` means no."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        self._text = text
        self._line = Lines()

    def compose(self) -> ComposeResult:
        yield self._line

    def on_mount(self) -> None:
        self._line.show([self._text], height=1)

    def on_key(self, event: Key) -> None:
        event.stop()
        self.dismiss(event.key in {"y", "Y"})


class TopApp(App[Exception]):
    """Draws views of a cluster until a key quits it; returns the error that ended it, if one did.

    Args:
        observe: returns what is known now; never waits.
        stop: ends the run of this id, in a thread of its own, and returns what has become of it.
        blocks: whether the terminal has block characters.
    """

    ENABLE_COMMAND_PALETTE = False
    ALLOW_SELECT = False
    CSS = f"""
    Lines {{ overflow-x: hidden; scrollbar-size-vertical: {SCROLLBAR}; }}
    Question {{ background: transparent; align: left bottom; }}
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quits"),
        Binding("Q,ctrl+d", "quit", show=False),
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False),
        Binding("l,L", "log(True)", "shows the log"),
        Binding("l,L", "log(False)", "hides the log"),
        Binding("g,G", "gpus(True)", "each GPU"),
        Binding("g,G", "gpus(False)", "GPUs together"),
        Binding("s,S", "stop_run", "stops the run"),
        Binding("s,S", "stop_nothing", show=False),
        Binding("up", "scroll('up')", "scroll", key_display="up/down/pgup/pgdn"),
        Binding("down", "scroll('down')", show=False),
        Binding("pageup", "scroll('page_up')", show=False),
        Binding("pagedown", "scroll('page_down')", show=False),
        Binding("home", "scroll('home')", show=False),
        Binding("end", "scroll('end')", show=False),
    ]

    def __init__(self, *, observe: Callable[[], View], stop: Callable[[str], str], blocks: bool = True) -> None:
        # The terminal's own colours; without the argument, NO_COLOR would make all of them black.
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self._observe, self._stop, self._blocks = observe, stop, blocks
        self._head_lines, self._node_lines, self._middle_lines = Lines(), Lines(), Lines()
        self._log_lines, self._foot_lines = Lines(follow=True), Lines()
        self._view = observe()
        self._drawing: Drawing | None = None
        self._keys: object = None
        self._with_log = True
        self._each_gpu: bool | None = None
        self._message = ""

    def compose(self) -> ComposeResult:
        yield from (self._head_lines, self._node_lines, self._middle_lines, self._log_lines, self._foot_lines)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        if not self._blocks:
            # A scrollbar's ends are block characters.
            self._node_lines.styles.scrollbar_size_vertical = self._log_lines.styles.scrollbar_size_vertical = 0
        self.set_interval(REDRAW_SECONDS, self._redraw)

    def on_resize(self) -> None:
        self.call_next(self._redraw)  # The app takes the new size after this.

    def _redraw(self) -> None:
        if not self.is_headless and not os.isatty(0):
            # The terminal is gone. Textual would read its end again and again, and wait forever to write to it.
            self.exit()
            return
        try:
            self._view = self._observe()
            looks = Looks(
                width=self.size.width,
                height=self.size.height - 1,
                blocks=self._blocks,
                log=self._with_log,
                each_gpu=self._each_gpu,
                message=self._message,
            )
            self._drawing = drawing = draw(self._view, looks)
        except Exception as error:  # noqa: BLE001 - Textual would print a traceback of its own; this is a bug like others
            self.exit(error)
            return
        self._head_lines.show(drawing.head, height=len(drawing.head))
        self._node_lines.show(drawing.nodes, height=drawing.nodes_height)
        self._middle_lines.show(drawing.middle, height=len(drawing.middle))
        self._log_lines.show(drawing.log, height=drawing.log_height)
        self._foot_lines.show(drawing.foot, height=len(drawing.foot))
        keys = [self.check_action(name, (True,)) for name in ("log", "gpus", "stop_run")]
        if keys != self._keys:
            self._keys = keys
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "log":
            return parameters[0] is not self._with_log
        if action == "gpus":
            has_gpus = any(node.sample.get("gpus") for node in self._view.nodes)
            return has_gpus and self._drawing is not None and parameters[0] is not self._drawing.each_gpu
        if action == "stop_run":
            return self._view.run is not None and self._view.run.goes_on
        return True

    def on_key(self) -> None:
        if self._message:
            self._message = ""
            self._redraw()

    def action_log(self, shown: bool) -> None:
        self._with_log = shown
        self._redraw()

    def action_gpus(self, each: bool) -> None:
        self._each_gpu = each
        self._redraw()

    def action_scroll(self, how: str) -> None:
        getattr(self._node_lines, f"scroll_{how}")(animate=False)

    def action_stop_nothing(self) -> None:
        self._message = "there is no run to stop"
        self._redraw()

    def action_stop_run(self) -> None:
        assert self._view.run is not None
        run = self._view.run.run

        def answered(yes: bool | None) -> None:
            if yes:
                self._message = f"stopping run {run} …"
                self._redraw()
                threading.Thread(target=self._stop_run, args=(run,), daemon=True).start()

        self.push_screen(Question(Text(f"stop run {run}? Its checkpoints are kept. y/n", style="reverse")), answered)

    def _stop_run(self, run: str) -> None:
        self._message = self._stop(run)


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
