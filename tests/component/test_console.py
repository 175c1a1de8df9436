"""What a terminal, a dumb one and a pipe get of the same command."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.harness import HVDCLOUD
from tests.support.terminal import printed_on_a_terminal

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


@pytest.mark.parametrize("args", [["upp"], ["up"], ["--help"], ["top"], ["status", "--watch"]])
def test_no_command_sends_escape_codes_to_a_dumb_terminal(tmp_path: Path, args: list[str]) -> None:
    code, printed = on_a_terminal(tmp_path, *HVDCLOUD[1:], *args, TERM="dumb")
    assert b"\x1b" not in printed
    assert code == (0 if args == ["--help"] else 2)
    if args == ["top"]:
        assert b"TERM=dumb" in printed
        assert b"hvdcloud status --watch" in printed
