"""The progress of what runs at the same time: rows at the end of a terminal, which Rich redraws, or plain lines."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.progress import DownloadColumn, Progress, ProgressColumn, Task, TaskID, TimeElapsedColumn, TransferSpeedColumn
from rich.spinner import Spinner
from rich.table import Column
from rich.text import Text
from rich.theme import Theme

from hvdcloud.visible import visible, words

_COLOURS = Theme({"progress.download": "none", "progress.data.speed": "none", "progress.elapsed": "dim"})
_BYTES, _SPEED = DownloadColumn(), TransferSpeedColumn()
_NOTICEABLE_SECONDS = 1.0


class Steps:
    """The progress of several concurrent operations, each with the step it is at.

    Every method may be called from any thread. On a terminal each operation has a row, which stays once it is complete,
    unless the block ends with an exception. Elsewhere each new step is a line; how far it is would be noise in a log.

    Args:
        say: prints such a line; None: the rows are drawn on `terminal`.
    """

    def __init__(self, terminal: TextIO, *, say: Callable[[str], None] | None) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._steps: dict[str, str] = {}
        self._ids: dict[str, TaskID] = {}
        spinner = Spinner("dots", style="cyan")
        cells = [
            _Cell(lambda task: Text("✓", style="green") if _has_ended(task) else spinner.render(task.get_time())),
            _Cell(lambda task: Text(f"{task.fields['name']} ", style="bold")),
            _Cell(_step, ratio=1, min_width=16, no_wrap=False),
            _Cell(_amount, justify="right"),
            TimeElapsedColumn(),
        ]
        self._rows = _Rows(
            *cells,
            console=rich_console(terminal),
            disable=say is not None,
            speed_estimate_period=5.0,
            transient=True,
            expand=True,
        )

    def __enter__(self) -> Steps:
        self._rows.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._rows.stop()
        # What was complete when something failed or was interrupted is about to be undone, or is in the error.
        finished = [task for task in self._rows.tasks if _has_ended(task)]
        if finished and kind is None and self._say is None:
            self._rows.console.print(self._rows.make_tasks_table(finished))

    def update(
        self,
        key: str,
        step: str,
        *,
        done: float | Callable[[], float] | None = None,
        total: float | None = None,
        if_slow: bool = False,
    ) -> None:
        """Show which step `key` is at.

        Args:
            done: how much of `total`, both in bytes; a function is asked whenever it is shown.
            if_slow: on a terminal it is shown once it has taken a second, elsewhere not at all.
        """
        fields: dict[str, Any] = {"done": done, "counts": bool(total)}
        with self._lock:
            is_new = self._steps.get(key) != step
            if is_new:
                self._steps[key], fields["output"] = step, ""
            shown = visible(step, lines=False)
            if key in self._ids:
                self._rows.update(self._ids[key], description=shown, total=total, **fields)
            else:
                fields |= {"name": visible(key, lines=False), "after": _NOTICEABLE_SECONDS if if_slow else 0.0}
                self._ids[key] = self._rows.add_task(shown, total=total, **fields)
        if is_new and not if_slow and self._say is not None:
            self._say(f"{key}: {step}")

    def output(self, key: str, line: str) -> None:
        """Show, on a terminal, what a step printed last."""
        with self._lock:
            if key in self._ids:
                self._rows.update(self._ids[key], output="".join(filter(str.isprintable, words(line))))

    def drop(self, key: str) -> None:
        """Forget it."""
        with self._lock:
            self._steps.pop(key, None)
            if key in self._ids:
                self._rows.remove_task(self._ids.pop(key))

    def finish(self, key: str, step: str = "done") -> None:
        """Show that `key` is complete."""
        self.update(key, step)
        with self._lock:
            self._rows.stop_task(self._ids[key])

    def above(self, text: str, *, style: str = "") -> None:
        """A line above what is redrawn."""
        self._rows.console.print(Text(visible(text), style=style), soft_wrap=True)


class _Rows(Progress):
    """The rows that have been there for as long as they say; where there are more than lines, those that go on."""

    def get_renderables(self) -> Iterator[RenderableType]:
        tasks = self.tasks
        for task in tasks:
            done = task.fields["done"]
            with contextlib.suppress(KeyError):  # Another thread may have dropped it.
                self.update(task.id, completed=done() if callable(done) else done or 0.0)
        tasks = [task for task in tasks if (task.elapsed or 0.0) >= task.fields["after"]]
        if not tasks:
            return
        if len(tasks) > self.console.height - 2:  # What is complete is shown at the end.
            tasks = [task for task in tasks if not _has_ended(task)]
        yield self.make_tasks_table(tasks)
        # The cursor rests on an empty line: what the terminal echoes there, such as ^C, moves no other line.
        yield Text("")


class _Cell(ProgressColumn):
    """What a function draws of a row."""

    def __init__(self, drawn: Callable[[Task], RenderableType], *, no_wrap: bool = True, **looks: Any) -> None:
        super().__init__(table_column=Column(no_wrap=no_wrap, **looks))
        self._drawn = drawn

    def render(self, task: Task) -> RenderableType:
        return self._drawn(task)


def _has_ended(task: Task) -> bool:
    return task.stop_time is not None


def _step(task: Task) -> RenderableType:
    """The step, and below it what it printed last."""
    output = "" if _has_ended(task) else task.fields["output"]
    below = [Text(output, style="dim", no_wrap=True, overflow="ellipsis")] if output else []
    return Group(Text(task.description), *below)


def _amount(task: Task) -> RenderableType:
    if not task.fields["counts"] or _has_ended(task):
        return ""
    return Text("  ").join([_BYTES.render(task), _SPEED.render(task)])


def rich_console(file: TextIO, *, width: int | None = None) -> Console:
    """What draws, by default as wide as the terminal; text is never taken for Rich's markup, and red is for errors."""
    # A width counts for Rich where a height is given too; else a dumb terminal has 80 columns.
    height = None if width is None else 25
    return Console(file=file, width=width, height=height, markup=False, emoji=False, highlight=False, theme=_COLOURS)


def lasting(terminal: TextIO) -> TextIO:
    """The terminal, but when it was closed meanwhile, that does not end a command which is deleting machines."""
    return cast("TextIO", _Lasting(terminal))


class _Lasting:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            return self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()
