"""The progress of what runs at the same time: lines that are redrawn in place on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from hvdcloud.units import seconds, size
from hvdcloud.visible import visible, words

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.live import Live
    from rich.text import Text

NOTICEABLE_SECONDS = 1.0
"""What takes longer gets a line."""
_REDRAW_SECONDS = 0.1
_RATE_SECONDS = 5.0
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_WIDE = 100
"""Columns from which there is room for a bar."""
_BAR = 20
_LEAST_STEP = 16
"""Columns that the step keeps when the figures would take more room than there is."""


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """One step that is in progress."""

    key: str
    since: float
    """When it began, by the clock of its `Steps`."""
    due: float = 0.0
    """When it is shown."""
    step: str = ""
    done: float | Callable[[], float] | None = None
    total: float | None = None
    in_bytes: bool = False
    output: str = ""
    """The last line that it printed."""
    ended: float | None = None
    _marks: deque[tuple[float, float]] = field(default_factory=deque)

    def amount(self) -> float:
        """How much of `total` is done."""
        done = self.done() if callable(self.done) else self.done or 0.0
        return max(0.0, min(done, self.total or 0.0))

    def rate(self, now: float) -> float:
        """Units a second, over the last seconds."""
        self._marks.append((now, self.amount()))
        while self._marks[0][0] < now - _RATE_SECONDS:
            self._marks.popleft()
        (begun, before), (_, after) = self._marks[0], self._marks[-1]
        return max(0.0, after - before) / (now - begun) if now > begun else 0.0


class Steps:
    """The progress of several concurrent operations, each with the step it is at.

    Every method may be called from any thread. This one prints a line whenever a step changes; how far a step is would
    be noise in a log.
    """

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._lock = threading.RLock()
        self._rows: dict[tuple[str, int], Row] = {}
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()

    def update(
        self,
        key: str,
        step: str,
        *,
        part: int = 0,
        done: float | Callable[[], float] | None = None,
        total: float | None = None,
        in_bytes: bool = False,
        after: float = 0.0,
    ) -> None:
        """Show which step `key` is at.

        Args:
            part: tells steps of the same `key` from each other that run at the same time.
            done: how much of `total`, both in bytes if `in_bytes`; a function is asked whenever it is shown.
            after: seconds from which on it is shown.
        """
        with self._lock:
            now = self._clock()
            row = self._rows.setdefault((key, part), Row(key=key, since=now, due=now + after))
            if changed := row.step != step:
                row.step, row.output = step, ""
            row.done, row.total, row.in_bytes = done, total, in_bytes
        if changed:
            self._changed(row, after)

    def _changed(self, row: Row, after: float) -> None:
        if not after:
            self._say(f"{row.key}: {row.step}")
            return
        timer = threading.Timer(after, self._say_if_still, args=(row, row.step))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()

    def _say_if_still(self, row: Row, step: str) -> None:
        with self._lock:
            still = row.step == step and row in self._rows.values()
        if still:
            self._say(f"{row.key}: {step}")

    def output(self, key: str, line: str, *, part: int = 0) -> None:
        """Show what a step printed last."""
        with self._lock:
            row = self._rows.get((key, part)) or self._rows.get((key, 0))
            if row is not None:
                row.output = "".join(char for char in words(line) if char.isprintable())

    def leave(self, key: str, *, part: int = 0) -> None:
        """The step is over: on a terminal it stays as a line above, if it took a second."""
        self.drop(key, part=part)

    def drop(self, key: str, *, part: int = 0) -> Row | None:
        """Forget it, and return what was known of it."""
        with self._lock:
            return self._rows.pop((key, part), None)

    def finish(self, key: str, step: str = "done") -> None:
        """Show that `key` is complete."""
        self.update(key, step)


class LiveSteps(Steps):
    """Lines at the end of a terminal, drawn again ten times a second. Those that are complete stay at the end."""

    def __init__(self, err: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(lambda _: None, clock=clock)
        self._err = err
        self._live: Live | None = None
        self._ending = threading.Event()
        self._ticker = threading.Thread(target=self._redraw, name="progress", daemon=True)

    def __enter__(self) -> LiveSteps:
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ending.set()
        self._ticker.join()
        with self._lock, _closed_terminal_does_not_matter():
            if self._live is not None:
                self._live.stop()
                self._live = None
            # What was complete when something failed or was interrupted is about to be undone, or is in the error.
            finished = [row for row in self._rows.values() if row.ended is not None and kind is None]
            if finished:
                console = self._console()
                for line in draw(finished, now=self._clock(), width=console.width, most=len(finished)):
                    console.print(line, soft_wrap=True)

    def _redraw(self) -> None:
        while not self._ending.wait(_REDRAW_SECONDS):
            with _closed_terminal_does_not_matter():
                self.draw()

    def draw(self) -> None:
        """Draw what is to be seen now."""
        with self._lock:
            now = self._clock()
            busy = {row.key for (_, part), row in self._rows.items() if part and row.due <= now}
            rows = [row for (_, part), row in self._rows.items() if row.due <= now and (part or row.key not in busy)]
            if self._live is None:
                if not rows:
                    return
                from rich.live import Live

                self._live = Live(console=self._console(), auto_refresh=False, transient=True)
                self._live.start()
            from rich.console import Group
            from rich.text import Text

            console = self._live.console
            lines = draw(rows, now=now, width=console.width, most=max(2, console.height - 2))
            # The cursor rests on an empty line: what the terminal echoes there, such as ^C, moves no other line.
            self._live.update(Group(*lines, Text("")), refresh=True)

    def _changed(self, row: Row, after: float) -> None:
        """Nothing: it is drawn with the others."""

    def above(self, text: str | Text, *, style: str = "") -> None:
        """A line above what is redrawn."""
        from rich.text import Text

        with self._lock, _closed_terminal_does_not_matter():
            console = self._live.console if self._live is not None else self._console()
            console.print(Text(visible(text), style=style) if isinstance(text, str) else text, soft_wrap=True)

    def leave(self, key: str, *, part: int = 0) -> None:
        row = self.drop(key, part=part)
        if row is None or (now := self._clock()) - row.since < NOTICEABLE_SECONDS:
            return
        row.ended, row.output = now, ""
        [line] = draw([row], now=now, width=self._console().width, most=1)
        self.above(line)

    def finish(self, key: str, step: str = "done") -> None:
        with self._lock:
            self.update(key, step)
            row = self._rows[key, 0]
            row.ended, row.output = self._clock(), ""

    def _console(self) -> RichConsole:
        return rich_console(self._err)


def rich_console(file: TextIO) -> RichConsole:
    """What draws on a terminal; text is never taken for Rich's markup."""
    from rich.console import Console as RichConsole

    return RichConsole(file=file, markup=False, emoji=False)


def _closed_terminal_does_not_matter() -> contextlib.suppress:
    """One that was closed meanwhile must not end a command that is deleting machines."""
    return contextlib.suppress(OSError, ValueError)


def draw(rows: Sequence[Row], *, now: float, width: int, most: int) -> list[Text]:
    """The lines of these rows, `most` at most, each shorter than the terminal is wide."""
    from rich.text import Text

    shown = list(rows)
    if len(rows) > most:
        # What is complete is the first to be left out: it is shown at the end.
        shown = sorted(rows, key=lambda row: row.ended is not None)[: most - 1]
    label = max((len(visible(row.key, lines=False)) for row in shown), default=0)
    outputs = 2 * len(rows) <= most
    lines = []
    for row in shown:
        lines.append(_line(row, now=now, width=width - 1, label=label))
        if row.output and outputs:
            line = Text(" " * (label + 4) + row.output, style="dim")
            line.truncate(width - 1, overflow="ellipsis")
            lines.append(line)
    if len(rows) > len(shown):
        lines.append(Text(f"  and {len(rows) - len(shown)} more", style="dim"))
    return lines


def _line(row: Row, *, now: float, width: int, label: int) -> Text:
    from rich.text import Text

    mark = ("✓", "green") if row.ended is not None else (_SPINNER[int(now * 10) % len(_SPINNER)], "cyan")
    line = Text.assemble(mark, " ", (visible(row.key, lines=False).ljust(label), "bold"), "  ")
    figures = Text("  ").join(_figures(row, now=now, wide=width >= _WIDE - 1))
    room = width - line.cell_len - figures.cell_len - 2
    if room < _LEAST_STEP:
        figures, room = Text(""), width - line.cell_len
    step = Text(visible(row.step, lines=False))
    # Two columns of a terminal are one character in some alphabets.
    step.truncate(room, overflow="ellipsis", pad=bool(figures))
    return Text.assemble(line, step, "  ", figures) if figures else line.append_text(step)


def _figures(row: Row, *, now: float, wide: bool) -> list[Text]:
    """How far it is and since when it runs; of what is complete, how long it took."""
    from rich.text import Text

    figures = []
    if row.ended is None and row.total:
        amount = row.amount()
        if wide:
            filled = int(_BAR * amount / row.total)
            figures.append(Text.assemble(("━" * filled, "green"), ("─" * (_BAR - filled), "dim")))
        if row.in_bytes:
            figures.append(Text(_part_of(amount, row.total)))
            figures.append(Text(f"{size(int(row.rate(now)))}/s"))
        else:
            # Complete is what has finished.
            figures.append(Text(f"{min(99, int(100 * amount / row.total))} %"))
    took = (now if row.ended is None else row.ended) - row.since
    if took >= NOTICEABLE_SECONDS:
        figures.append(Text(seconds(took) if took >= 60 else f"{int(took)} s", style="dim"))
    return figures


def _part_of(amount: float, total: float) -> str:
    """Bytes as `104.0/600.0 MB`; of gigabytes with a digit more, so that it moves."""
    if total >= 1e9:
        return f"{amount / 1e9:.2f}/{total / 1e9:.2f} GB"
    number, unit = size(int(total)).split()
    return f"{amount * float(number) / total:.1f}/{number} {unit}"
