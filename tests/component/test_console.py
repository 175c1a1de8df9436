"""What a terminal, a dumb one and a pipe get of the same command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyte
import pytest

from tests.support.harness import HVDCLOUD
from tests.support.terminal import COLOUR, printed_on_a_terminal

PRINTS = """
from hvdcloud.console import Console
from hvdcloud.errors import UsageError

console = Console()
console.warn("it may cost [more] than $5")
with console.steps() as steps:
    steps.update("digits-0", "booting", done=1.0, total=2.0)
    console.say("between two steps")
    steps.finish("digits-0")
console.error(UsageError("no such node", hint="hvdcloud status", details="digits-7"))
console.clear()
console.answer("fine: 2 nodes 'x' https://example.org", style="green")
console.table(["NODE", "STATE"], [["digits-0", "running"]])
"""
ON_ERR = [
    "warning: it may cost [more] than $5",
    "digits-0: booting",
    "between two steps",
    "digits-0: done",
    "error: no such node",
    "  digits-7",
    "  → hvdcloud status",
]
ON_OUT = ["", "fine: 2 nodes 'x' https://example.org", "NODE      STATE", "digits-0  running"]
ENDS = """
from pathlib import Path
from hvdcloud.console import Console
from hvdcloud.errors import InterruptedByUserError, UsageError

console = Console()
console.result(["digits trained: accuracy 0.992", "1 min 20 s"], path=Path("/home/me" + "/digits" * 12))
console.error(UsageError("no such node", hint="hvdcloud " * 12 + "status"))
print("---", flush=True)
console.error(InterruptedByUserError("launch is stopped", hint="the same command continues"))
"""
LAST_LINES = [
    f"✓ digits trained: accuracy 0.992 · 1 min 20 s → /home/me{'/digits' * 12}",
    "error: no such node",
    f"  → {'hvdcloud ' * 12}status",
    "---",
    "launch is stopped; the same command continues",
]


def on_a_terminal(tmp_path: Path, *args: str, size: tuple[int, int] = (80, 24), **environ: str) -> tuple[int, bytes]:
    return printed_on_a_terminal([sys.executable, *args], cwd=tmp_path, environ=environ, size=size)


@pytest.mark.parametrize("size", [(80, 24), (140, 45)])
def test_a_terminal_shows_lines_of_any_length_whole_and_in_colour(tmp_path: Path, size: tuple[int, int]) -> None:
    _, printed = on_a_terminal(tmp_path, "-c", ENDS, size=size, TERM="xterm-256color")
    screen = pyte.Screen(*size)
    pyte.ByteStream(screen).feed(printed)
    wrapped = [line[at : at + size[0]].rstrip() for line in LAST_LINES for at in range(0, len(line), size[0])]
    assert [line.rstrip() for line in screen.display if line.strip()] == wrapped
    assert b"\x1b[32m\xe2\x9c\x93 digits trained" in printed
    assert b"\x1b[31merror: no such node" in printed
    # Ctrl-C is no error.
    assert not COLOUR.search(printed.partition(b"---")[2])


def test_a_pipe_and_a_terminal_without_colours_get_the_same_lines(tmp_path: Path) -> None:
    _, printed = on_a_terminal(tmp_path, "-c", ENDS, TERM="xterm-256color", NO_COLOR="1")
    assert not COLOUR.search(printed)
    environ = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    piped = subprocess.run(
        [sys.executable, "-c", ENDS], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, env=environ
    )
    assert piped.stdout.decode().splitlines() == LAST_LINES


@pytest.mark.parametrize("term", ["dumb", "unknown", "Dumb"])
def test_a_terminal_without_escape_codes_gets_lines(tmp_path: Path, term: str) -> None:
    _, printed = on_a_terminal(tmp_path, "-c", PRINTS, TERM=term)
    assert printed.decode().splitlines() == [*ON_ERR, *ON_OUT]


@pytest.mark.parametrize("args", [["upp"], ["up"], ["--help"], ["top"], ["status", "--watch"]])
def test_no_command_sends_escape_codes_to_a_dumb_terminal(tmp_path: Path, args: list[str]) -> None:
    code, printed = on_a_terminal(tmp_path, *HVDCLOUD[1:], *args, TERM="dumb")
    assert b"\x1b" not in printed
    assert code == (0 if args == ["--help"] else 2)
    if args == ["top"]:
        assert b"TERM=dumb" in printed
        assert b"hvdcloud status --watch" in printed
