"""The progress of what runs at the same time, as rows at the end of a terminal, which Rich draws again and again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.progress import DownloadColumn, Progress, ProgressColumn, Task, TaskID, TimeElapsedColumn, TransferSpeedColumn
from rich.spinner import Spinner
from rich.table import Column
from rich.text import Text
from rich.theme import Theme

from hvdcloud.steps import Steps
from hvdcloud.visible import visible, words

_COLOURS = Theme({"progress.download": "none", "progress.data.speed": "none", "progress.elapsed": "dim"})
_BYTES, _SPEED = DownloadColumn(), TransferSpeedColumn()
_NOTICEABLE_SECONDS = 1.0


class LiveSteps(Steps):
    """Rows on a terminal that stay once they are complete, unless the block ends with an exception."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__(lambda _: None)
        self.rows = _rows_on(terminal)
        self._ids: dict[str, TaskID] = {}

    def __enter__(self) -> LiveSteps:
        self.rows.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.rows.stop()
        # What was complete when something failed or was interrupted is about to be undone, or is in the error.
        if kind is None and (finished := [task for task in self.rows.tasks if _has_ended(task)]):
            self.rows.console.print(self.rows.make_tasks_table(finished))

    def update(
        self,
        key: str,
        step: str,
        *,
        done: float | Callable[[], float] | None = None,
        total: float | None = None,
        in_bytes: bool = False,
        if_slow: bool = False,
    ) -> None:
        fields: dict[str, Any] = {"done": done, "counts": bool(total), "in_bytes": in_bytes}
        with self._lock:
            if self._steps.get(key) != step:
                self._steps[key], fields["output"] = step, ""
            step = visible(step, lines=False)
            if key in self._ids:
                self.rows.update(self._ids[key], description=step, total=total, **fields)
            else:
                fields |= {"name": visible(key, lines=False), "after": _NOTICEABLE_SECONDS if if_slow else 0.0}
                self._ids[key] = self.rows.add_task(step, total=total, **fields)

    def output(self, key: str, line: str) -> None:
        with self._lock:
            if key in self._ids:
                self.rows.update(self._ids[key], output="".join(filter(str.isprintable, words(line))))

    def drop(self, key: str) -> None:
        super().drop(key)
        with self._lock:
            found = self._ids.pop(key, None)
        if found is not None:
            self.rows.remove_task(found)

    def finish(self, key: str, step: str = "done") -> None:
        self.update(key, step)
        with self._lock:
            self.rows.stop_task(self._ids[key])

    def above(self, text: str, *, style: str = "") -> None:
        """A line above what is redrawn."""
        self.rows.console.print(Text(visible(text), style=style), soft_wrap=True)


class Rows(Progress):
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


def _rows_on(terminal: TextIO) -> Rows:
    spinner = Spinner("dots", style="cyan")
    cells = [
        _Cell(lambda task: Text("✓", style="green") if _has_ended(task) else spinner.render(task.get_time())),
        _Cell(lambda task: Text(f"{task.fields['name']} ", style="bold")),
        _Cell(_step, ratio=1, min_width=16, no_wrap=False),
        _Cell(_amount, justify="right"),
        TimeElapsedColumn(),
    ]
    return Rows(*cells, console=rich_console(terminal), speed_estimate_period=5.0, transient=True, expand=True)


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
    if task.fields["in_bytes"]:
        return Text("  ").join([_BYTES.render(task), _SPEED.render(task)])
    # Complete is what has finished.
    return Text(f"{min(99, int(task.percentage))} %")


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
