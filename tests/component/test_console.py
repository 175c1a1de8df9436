"""What a terminal, a dumb one and a pipe get of the same command."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


def on_a_terminal(tmp_path: Path, *args: str, **environ: str) -> tuple[int, bytes]:
    return printed_on_a_terminal([sys.executable, *args], cwd=tmp_path, environ=environ)


@pytest.mark.parametrize("term", ["dumb", "unknown", "Dumb"])
def test_a_terminal_without_escape_codes_gets_lines(tmp_path: Path, term: str) -> None:
    _, printed = on_a_terminal(tmp_path, "-c", PRINTS, TERM=term)
    assert printed.decode().splitlines() == [*ON_ERR, *ON_OUT]


WIDE = """
from hvdcloud.console import Console

Console().table(["RUN", "CLUSTER", "NODES"], [["20261121-101112-abcdef", "a cluster with a long name", "3"]])
"""


def test_a_table_on_a_narrow_terminal_keeps_its_first_column_whole_and_loses_nothing(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "TERM": "xterm-256color"}
    _, printed = printed_on_a_terminal([sys.executable, "-c", WIDE], cwd=tmp_path, environ=environ, size=(46, 24))
    assert printed.decode().splitlines() == [
        "RUN                     CLUSTER          NODES",
        "20261121-101112-abcdef  a cluster with   3",
        "                        a long name",
    ]


def test_a_terminal_gets_colours_and_no_color_takes_them_away(tmp_path: Path) -> None:
    _, coloured = on_a_terminal(tmp_path, "-c", PRINTS, TERM="xterm-256color")
    for said in (b"\x1b[33mwarning: it may", b"\x1b[31merror: no such node", b"\x1b[32mfine: 2 nodes 'x' https:"):
        assert said in coloured
    _, plain = on_a_terminal(tmp_path, "-c", PRINTS, TERM="xterm-256color", NO_COLOR="1")
    assert not COLOUR.search(plain), plain
    for line in (ON_ERR[0], "error: no such node", ON_OUT[1]):
        assert f"{line}\r\n" in plain.decode()


def test_a_terminal_is_cleared_before_the_answer_begins_again(tmp_path: Path) -> None:
    _, printed = on_a_terminal(tmp_path, "-c", PRINTS, TERM="xterm-256color")
    assert b"\x1b[2J\x1b[H" in printed


@pytest.mark.parametrize("args", [["upp"], ["up"], ["--help"], ["top"], ["status", "--watch"]])
def test_no_command_sends_escape_codes_to_a_dumb_terminal(tmp_path: Path, args: list[str]) -> None:
    code, printed = on_a_terminal(tmp_path, *HVDCLOUD[1:], *args, TERM="dumb")
    assert b"\x1b" not in printed
    assert code == (0 if args == ["--help"] else 2)
    if args == ["top"]:
        assert b"TERM=dumb" in printed
        assert b"hvdcloud status --watch" in printed
