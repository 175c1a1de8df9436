"""The only module that prints.

Standard output carries the answer, standard error the progress. On a terminal Rich draws progress and colours; a pipe
and a terminal that takes no escape codes get plain lines; with `--json` standard output carries one versioned document
and nothing else.

Nothing here trusts what it prints: all of it passes through `visible`, so that no text can act on the terminal, begin a
line that looks like one of ours, or be taken for Rich's markup. A job's output keeps its colours on a terminal; in a
pipe it is what the job wrote, byte for byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from rich.table import Column, Table
from rich.text import Text

from hvdcloud.errors import ExitCode, HvdcloudError, InterruptedByUserError, OutputClosedError
from hvdcloud.steps import Steps, lasting, rich_console
from hvdcloud.visible import JobText, visible

JSON_VERSION = 1
_UNLIMITED = 100_000
"""Columns of what is no terminal."""
_ARROW = "→"
"""In front of what to type next, which only we say."""


def is_dumb() -> bool:
    """Whether a terminal here would show escape codes as text; Rich asks the same."""
    return os.environ.get("TERM", "").lower() in {"dumb", "unknown"}


def _can_draw(stream: TextIO) -> bool:
    return stream.isatty() and not is_dumb()


class Console:
    """What a command prints with."""

    def __init__(
        self,
        *,
        as_json: bool = False,  # One JSON document on standard output instead of text.
        quiet: bool = False,  # No progress; warnings and errors only.
        verbose: bool = False,  # More progress.
        out: TextIO | None = None,  # For the answer.
        err: TextIO | None = None,  # For everything else.
        keyboard: TextIO | None = None,  # Where keys and answers to questions come from.
    ) -> None:
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose
        self._out, self._err, self.keyboard = out or sys.stdout, lasting(err or sys.stderr), keyboard or sys.stdin
        self.named_here = ""
        """The cluster that commands mean without `--name`; no hint says it."""
        self._drawing: Steps | None = None
        self._job_text = JobText()

    # --- progress, on standard error --------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A line of progress."""
        if not self.quiet:
            self._line(text)

    def detail(self, text: str) -> None:
        """A line that only `--verbose` shows."""
        if self.verbose and not self.quiet:
            self._line(text)

    def warn(self, text: str) -> None:
        """A line that even `--quiet` shows."""
        self._line(_continued(f"warning: {text}"), style="yellow")

    def _line(self, text: str, *, style: str = "") -> None:
        text = self._job_text.leave() + visible(self._short(text))
        if self._drawing is not None:
            self._drawing.above(text, style=style)
        else:
            _write(self._err, text, style=style)

    def _short(self, text: str) -> str:
        """Without the `--name` that the reader need not type."""
        return re.sub(rf" --name {re.escape(self.named_here)}(?![-\w])", "", text) if self.named_here else text

    # --- questions, also on standard error ----------------------------------------------------------------------------

    @property
    def can_ask(self) -> bool:
        """Whether a user can answer: a terminal on both sides, and no script that reads JSON."""
        # sys.stdin is None where a process was started without one.
        return not self.as_json and self.keyboard is not None and self.keyboard.isatty() and self._err.isatty()

    def confirm(self, question: str) -> bool:
        """Ask a yes-or-no question; anything but yes is no, and so is the end of the input.

        Raises KeyboardInterrupt: Ctrl-C.
        """
        self._err.write(f"{visible(question)} [y/N] ")
        self._err.flush()
        return self.keyboard.readline().strip().lower() in ("y", "yes")

    @contextlib.contextmanager
    def steps(self) -> Iterator[Steps]:
        """A block in which several things report their steps."""
        if self._drawing is not None:
            yield self._drawing
            return
        live = _can_draw(self._err) and not self.quiet and not self.as_json
        with Steps(self._err, say=None if live else self.say) as steps:
            self._drawing = steps if live else None
            try:
                yield steps
            finally:
                self._drawing = None

    @contextlib.contextmanager
    def waiting(self, key: str, step: str) -> Iterator[None]:
        """A block that shows on a terminal what it does if it takes more than a second, and leaves nothing of that.

        Threads beside the command show nothing.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with self.steps() as steps:
            steps.update(key, step, if_slow=True)
            try:
                yield
            finally:
                steps.drop(key)

    # --- the answer, on standard output -----------------------------------------------------------------------------

    def job_output(self, data: bytes) -> None:
        """What the job's ranks print: into a pipe byte for byte, on a terminal without what would act on it.

        With `--json` it goes to standard error.
        """
        stream = self._err if self.as_json else self._out
        if stream.isatty():
            text = self._job_text.feed(data)
            # A colour that the job left on would be that of our next line.
            text += "\x1b[0m" if "\x1b" in text and text.endswith("\n") else ""
            data = text.encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")
        if not data:
            return
        binary: BinaryIO | None = getattr(stream, "buffer", None)
        with _closed_output_ends_the_command():
            if binary is None:
                stream.write(data.decode(errors="replace"))
            else:
                binary.write(data)
            stream.flush()

    def answer(self, text: str, *, style: str = "") -> None:
        """A line of the answer, for people; `style` is Rich's, such as "green", and for terminals only."""
        if not self.as_json:
            with _closed_output_ends_the_command():
                _write(self._out, self._job_text.leave() + text, style=style)

    def result(
        self, parts: Sequence[str], *, path: Path | None = None, command: str = "", progress: bool = False
    ) -> None:
        """How a command ended well, in its last line: `✓ digits trained: accuracy 0.99 · $0 → /home/me/digits`.

        Args:
            parts: what there is to say, the most important first.
            path: where the files are.
            command: in place of a path, what to type next.
            progress: on standard error instead.
        """
        if self.quiet if progress else self.as_json:
            return
        stream = self._err if progress else self._out
        then = visible(str(path or command), lines=False)
        text = f"{self._job_text.leave()}✓ {' · '.join(parts)}{f' → {then}' if then else ''}"
        with contextlib.nullcontext() if progress else _closed_output_ends_the_command():
            _write(stream, text, style="green")

    @property
    def is_screen(self) -> bool:
        """Whether the answer goes to a terminal whose keys can be read."""
        return self.can_ask and self._out.isatty()

    def clear(self) -> None:
        """Begin the answer again: on a terminal at its top, elsewhere behind an empty line."""
        if _can_draw(self._out):
            rich_console(self._out).clear()
        else:
            self.answer("")

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: Collection[str] = ()) -> None:
        """A table of the answer, for people; where the terminal is too narrow, its cells take several lines.

        Args:
            headers: of each column; all empty: the table has none.
            numbers: those of columns whose cells are aligned at the right.
        """
        columns = [
            Column(header, no_wrap=not index, overflow="fold", justify="right" if header in numbers else "left")
            for index, header in enumerate(headers)
        ]
        table = Table(*columns, box=None, pad_edge=False, header_style="none", show_header=any(headers))
        for row in rows:
            table.add_row(*(Text(visible(str(cell), lines=False)) for cell in row))
        width = shutil.get_terminal_size().columns if self._out.isatty() else _UNLIMITED
        console = rich_console(self._out, width=width)
        with console.capture() as drawn:
            console.print(table)
        for line in drawn.get().splitlines():
            self.answer(line.rstrip())

    def document(
        self,
        command: str,
        *,
        result: object = None,
        exit_code: ExitCode = ExitCode.OK,
        error: HvdcloudError | None = None,
    ) -> None:
        """With `--json`: the one document of this command."""
        if not self.as_json:
            return
        body: dict[str, Any] = {"version": JSON_VERSION, "command": command, "exit_code": int(exit_code)}
        body["result"] = result
        if error is not None:
            body["error"] = {"message": error.message, "hint": self._short(error.hint), "details": error.details}
        self.raw_json(body)

    def raw_json(self, value: object) -> None:
        """A JSON value that is itself the answer, such as a schema."""
        from pydantic import TypeAdapter

        plain = TypeAdapter(Any).dump_python(value, mode="json", fallback=str)
        # The one character of ASCII that JSON leaves as it is, and that no terminal shows.
        text = json.dumps(plain, indent=2).replace("\x7f", "\\u007f")
        with _closed_output_ends_the_command():
            _write(self._out, text)

    def error(self, error: HvdcloudError) -> None:
        """What went wrong, why, and what to type next; Ctrl-C is no error, and has one line."""
        if isinstance(error, InterruptedByUserError):
            # A terminal has put `^C` where the cursor was.
            after_key = [""] if self._err.isatty() else []
            for line in (*after_key, f"{error.message}; {error.hint}", *error.details.splitlines()):
                self._line(_continued(line))
            return
        self._line(_continued(f"error: {error.message}"), style="red")
        for line in error.details.splitlines():
            self._line(f"  {_quoted(line)}")
        self._line(f"  {_ARROW} {error.hint}", style="cyan")


def _continued(text: str) -> str:
    """Several lines of which the later ones are seen to belong to the first."""
    first, *more = text.split("\n")
    return "\n".join([first, *(f"  {_quoted(line)}" for line in more)])


def _quoted(line: str) -> str:
    """A line of details: the words of a log or a node, which never look like our own hint."""
    return f"| {line}" if line.lstrip().startswith(_ARROW) else line


@contextlib.contextmanager
def _closed_output_ends_the_command() -> Iterator[None]:
    """What goes wrong with standard output in this block is no fault of a node, and ends the command.

    Raises OutputClosedError.
    """
    try:
        yield
    except BrokenPipeError:
        raise OutputClosedError("", hint="") from None
    except OSError as error:
        why = f"standard output cannot be written: {error.strerror}"
        raise OutputClosedError(why, hint="write it where there is room") from error


def _write(stream: TextIO, text: str, *, style: str = "") -> None:
    """A line; in a style on a terminal."""
    text = visible(text)
    if style and _can_draw(stream):
        rich_console(stream).print(Text(text, style=style), soft_wrap=True)
        return
    stream.write(text + "\n")
    stream.flush()
