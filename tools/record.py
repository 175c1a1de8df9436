"""`make record`: a command in a terminal, really run, as an animated SVG file.

    python -m tools.record FILE.svg [--folder DIR] [--size 100x30] -- COMMAND…

The command runs in a pseudo-terminal; what it writes, and when, goes through a terminal emulator. Each line of the
screen becomes a strip of all that ever stood in it, one below the other, and CSS moves the strip behind a window one
line high: no script, no font, a few hundred bytes a change. Where nothing moves (a viewer without CSS animations, a
reader who asked for less motion) the last screen is shown.

Waits are shortened: a screen on which only clocks and spinners move stays for a second.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import select
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import pyte

FRAMES_PER_SECOND = 10
KEY_SECONDS = 0.1
"""Between two typed characters."""
QUIET_SECONDS = 1.0
"""What is left of a longer wait."""
LAST_SECONDS = 8.0
"""How long the last screen stays before it all begins again."""
PROMPT = "\033[1;32m$\033[0m "

CELL_WIDTH = 8.4
LINE_HEIGHT = 18
FONT_SIZE = 14
MARGIN = 16
BAR_HEIGHT = 36
"""Of the window's title bar."""
BACKGROUND, FOREGROUND, BORDER, FAINT = "#161b22", "#e6edf3", "#30363d", "#8b949e"
COLOURS = {
    "black": "#484f58", "red": "#ff7b72", "green": "#3fb950", "brown": "#d29922", "blue": "#58a6ff",
    "magenta": "#bc8cff", "cyan": "#39c5cf", "white": "#b1bac4",
}  # fmt: skip
BRIGHT = {
    "black": "#6e7681", "red": "#ffa198", "green": "#56d364", "brown": "#e3b341", "blue": "#79c0ff",
    "magenta": "#d2a8ff", "cyan": "#56d4dd", "white": "#ffffff",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a command wrote to its terminal."""

    command: str
    """As it would be typed."""
    columns: int
    rows: int
    chunks: Sequence[tuple[float, bytes]]
    """Seconds since its start, and what came then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Characters of one line that look alike."""

    column: int
    text: str
    colour: str = FOREGROUND
    background: str = ""
    bold: bool = False


Line = tuple[Run, ...]
Screen = tuple[Line, ...]


# --- recording ------------------------------------------------------------------------------------------------------


def record(
    command: Sequence[str], *, folder: Path, columns: int, rows: int, limit_seconds: float
) -> tuple[Recording, int]:
    """Run a command in a terminal of this size, and show here what it writes.

    Returns:
        The recording, and the command's exit code.

    Raises:
        TimeoutError: it ran for longer than the limit; it was ended.
    """
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    start = time.monotonic()
    process = subprocess.Popen(
        command, cwd=folder, env=_environment(os.environ), stdin=its, stdout=its, stderr=its, start_new_session=True
    )
    os.close(its)
    chunks = []
    try:
        for data in _output(ours, until=start + limit_seconds):
            chunks.append((time.monotonic() - start, data))
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
        code = process.wait(timeout=60)
    except TimeoutError:
        process.terminate()
        process.wait(timeout=60)
        raise
    finally:
        os.close(ours)
    return Recording(command=shlex.join(command), columns=columns, rows=rows, chunks=chunks), code


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """A terminal with 256 colours, and the programs beside this Python before all others."""
    unwanted = {"COLUMNS", "LINES", "COLORTERM", "NO_COLOR", "FORCE_COLOR", "TERM_PROGRAM"}
    kept = {name: value for name, value in environment.items() if name not in unwanted}
    path = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
    return {**kept, "PATH": path, "TERM": "xterm-256color"}


def _output(terminal: int, *, until: float) -> Iterator[bytes]:
    while True:
        readable, _, _ = select.select([terminal], [], [], max(0.0, until - time.monotonic()))
        if not readable:
            raise TimeoutError("the command did not end in time")
        try:
            data = os.read(terminal, 65536)
        except OSError:  # EIO: on Linux, how a terminal ends.
            return
        if not data:
            return
        yield data


# --- screens --------------------------------------------------------------------------------------------------------


def screens(recording: Recording) -> list[tuple[float, Screen]]:
    """Every screen that differs from the one before it, and the second at which it comes."""
    terminal = pyte.Screen(recording.columns, recording.rows)
    stream = pyte.ByteStream(terminal)
    found: list[tuple[float, Screen]] = []
    before, now, quiet = 0.0, 0.0, 0.0
    for at, data in _frames(_with_prompts(recording)):
        stream.feed(data)
        screen = _screen(terminal)
        if found and screen == found[-1][1]:
            continue
        passed = at - before
        now += max(0.0, min(passed, QUIET_SECONDS - quiet))
        before = at
        quiet = quiet + passed if found and _gist(screen) == _gist(found[-1][1]) else 0.0
        # Where time was left out, only the newest of the screens is of use.
        if found and found[-1][0] == now:
            found.pop()
        found.append((now, screen))
    return found


def _with_prompts(recording: Recording) -> Iterator[tuple[float, bytes]]:
    """What the command wrote, after its being typed and before the next prompt."""
    yield 0.0, PROMPT.encode()
    for index, character in enumerate(recording.command):
        yield (index + 5) * KEY_SECONDS, character.encode()
    start = (len(recording.command) + 9) * KEY_SECONDS
    yield start, b"\r\n"
    for at, data in recording.chunks:
        yield start + at, data
    yield start + (recording.chunks[-1][0] if recording.chunks else 0.0), f"\033[0m\033[?25h{PROMPT}".encode()


def _frames(chunks: Iterator[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """What comes within one frame's time, together."""
    frame, pending = 0, b""
    for at, data in chunks:
        number = round(at * FRAMES_PER_SECOND)
        if number != frame and pending:
            yield frame / FRAMES_PER_SECOND, pending
            pending = b""
        frame = number
        pending += data
    yield frame / FRAMES_PER_SECOND, pending


def _gist(screen: Screen) -> list[str]:
    """The text without what moves by itself: clocks and spinners."""
    return [re.sub(r"[\d\u2800-\u28ff]", "", " ".join(run.text for run in line)) for line in screen]


def _screen(terminal: Any) -> Screen:
    return tuple(_line(terminal, row) for row in range(terminal.lines))


def _line(terminal: Any, row: int) -> Line:
    cursor = terminal.cursor.x if row == terminal.cursor.y and not terminal.cursor.hidden else -1
    runs: list[Run] = []
    cells = terminal.buffer[row]
    for column in range(terminal.columns):
        run = _cell(column, cells[column], under_cursor=column == cursor)
        last = runs[-1] if runs else None
        if last and (last.colour, last.background, last.bold) == (run.colour, run.background, run.bold):
            runs[-1] = Run(
                column=last.column,
                text=last.text + run.text,
                colour=run.colour,
                background=run.background,
                bold=run.bold,
            )
        else:
            runs.append(run)
    return tuple(run for run in runs if run.text.strip() or run.background)


def _cell(column: int, cell: Any, *, under_cursor: bool) -> Run:
    colour, background = _colour(cell.fg, bold=cell.bold), _colour(cell.bg, bold=False)
    if cell.reverse != under_cursor:
        colour, background = background or BACKGROUND, colour or FOREGROUND
    # A space has no colour of its own: without one, it parts no run.
    return Run(column=column, text=cell.data, colour=colour or FOREGROUND, background=background, bold=cell.bold)


@cache
def _colour(name: str, *, bold: bool) -> str:
    """Of a name or six hexadecimal digits, as pyte has them; empty: the terminal's own."""
    bright = name.removeprefix("bright")
    if bright in COLOURS:
        return (BRIGHT if bold or bright != name else COLOURS)[bright]
    return f"#{name}" if re.fullmatch(r"[0-9a-f]{6}", name) else ""


# --- SVG ------------------------------------------------------------------------------------------------------------


def svg(recording: Recording) -> str:
    """The recording as one SVG document."""
    shown = screens(recording)
    seconds = shown[-1][0] + LAST_SECONDS
    used = 1 + max(row for _, screen in shown for row, line in enumerate(screen) if line)
    width = recording.columns * CELL_WIDTH + 2 * MARGIN
    height = used * LINE_HEIGHT + BAR_HEIGHT + MARGIN
    strips, rules = [], []
    for row in range(used):
        strip, moves = _strip(row, [(at, screen[row]) for at, screen in shown], seconds=seconds)
        strips.append(strip)
        rules += moves
    title = quoteattr(f"Terminal: {recording.command}")
    room = recording.columns - 24
    caption = recording.command if len(recording.command) <= room else recording.command[:room] + "…"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height}" '
            f'viewBox="0 0 {width:g} {height}" role="img" aria-label={title} xml:space="preserve" '
            f"font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\" "
            f'font-size="{FONT_SIZE}" fill="{FOREGROUND}">',
            "<style>",
            f"g[id]{{animation:{seconds:g}s step-end infinite}}",
            "text{white-space:pre}",
            *rules,
            "@media(prefers-reduced-motion:reduce){g[id]{animation:none!important}}",
            "</style>",
            f'<rect x=".5" y=".5" width="{width - 1:g}" height="{height - 1}" rx="8" fill="{BACKGROUND}" '
            f'stroke="{BORDER}"/>',
            *(
                f'<circle cx="{20 + 20 * index}" cy="18" r="6" fill="{colour}"/>'
                for index, colour in enumerate(("#ff5f56", "#ffbd2e", "#27c93f"))
            ),
            f'<text x="{width / 2:g}" y="23" text-anchor="middle" fill="{FAINT}">{escape(caption)}</text>',
            f'<svg x="{MARGIN}" y="{BAR_HEIGHT}" width="{width - 2 * MARGIN:g}" height="{used * LINE_HEIGHT}">',
            *strips,
            "</svg>",
            "</svg>\n",
        ]
    )


def _strip(row: int, states: Sequence[tuple[float, Line]], *, seconds: float) -> tuple[str, list[str]]:
    """All that is ever in one line of the screen, and the CSS that moves it."""
    lines: dict[Line, int] = {}
    moves: list[tuple[float, int]] = []
    for at, line in states:
        offset = lines.setdefault(line, len(lines)) * LINE_HEIGHT
        if not moves or offset != moves[-1][1]:
            moves.append((at, offset))
    content = "".join(_drawn(line, index * LINE_HEIGHT) for line, index in lines.items())
    window = f'<svg y="{row * LINE_HEIGHT}" height="{LINE_HEIGHT}">'
    if len(moves) == 1:
        return f"{window}{content}</svg>", []
    frames = "".join(f"{100 * at / seconds:.2f}%{{transform:translateY(-{offset}px)}}" for at, offset in moves)
    strip = f'<g id="l{row}" transform="translate(0 -{moves[-1][1]})">{content}</g>'
    return f"{window}{strip}</svg>", [f"#l{row}{{animation-name:l{row}}}@keyframes l{row}{{{frames}}}"]


def _drawn(line: Line, top: int) -> str:
    parts = []
    for run in line:
        if run.background:
            parts.append(
                f'<rect x="{run.column * CELL_WIDTH:g}" y="{top}" width="{len(run.text) * CELL_WIDTH:g}" '
                f'height="{LINE_HEIGHT}" fill="{run.background}"/>'
            )
        text = run.text.rstrip()
        if text := text.lstrip():
            column = run.column + len(run.text.rstrip()) - len(text)
            # The length keeps the columns where they are in any font of the reader's.
            length = f' textLength="{len(text) * CELL_WIDTH:g}"' if len(text) > 1 else ""
            colour = f' fill="{run.colour}"' if run.colour != FOREGROUND else ""
            weight = ' font-weight="bold"' if run.bold else ""
            parts.append(
                f'<text x="{column * CELL_WIDTH:g}" y="{top + FONT_SIZE}"{length}{colour}{weight}>{escape(text)}</text>'
            )
    return "".join(parts)


def main() -> int:
    """The command line.

    Returns:
        The exit code: the command's own if it failed; nothing is written then.
    """
    parser = argparse.ArgumentParser(description="Record a command in a terminal as an animated SVG file.")
    parser.add_argument("file", type=Path, help="the SVG file")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the command runs")
    parser.add_argument("--size", default="100x30", help="columns and rows of the terminal (default: %(default)s)")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which it is ended (%(default)s)")
    parser.add_argument("command", nargs="+", help="after --: the command")
    arguments = parser.parse_args()
    columns, rows = map(int, arguments.size.split("x"))
    recording, code = record(
        arguments.command, folder=arguments.folder, columns=columns, rows=rows, limit_seconds=arguments.limit
    )
    if code:
        sys.stderr.write(f"record: `{recording.command}` failed with exit code {code}; nothing is written\n")
        return code
    picture = svg(recording)
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    arguments.file.write_text(picture, encoding="utf-8")
    sys.stderr.write(f"record: {arguments.file}: {len(picture.encode()) / 1000:.0f} kB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
