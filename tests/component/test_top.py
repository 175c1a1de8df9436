"""The terminal of `hvdcloud top`: how it is left, and that it is then as it was."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.terminal import Terminal, terminal_with

# hvdcloud's own way to end: with its signal handlers, its exit codes, and a message for what is a bug.
PROGRAM = """
import sys
from hvdcloud.cli import main
from hvdcloud.cli.top_app import TopApp, run_until_quit
from tests.support.views import many_nodes

views = 0

def observe():
    global views
    views += 1
    if {broken} and views > 3:
        raise ValueError("no such figure")
    return many_nodes(64)

def app(argv, **_):
    run_until_quit(TopApp(observe))
    print("the cluster stays")

main.command_line = lambda: app
main.main([])
"""
ON, OFF = b"\x1b[?1049h", b"\x1b[?1049l"


@contextmanager
def top(tmp_path: Path, *, broken: bool = False, **environ: str) -> Iterator[Terminal]:
    environ |= {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", PROGRAM.format(broken=broken)]
    with terminal_with(argv, cwd=tmp_path, environ=environ) as opened:
        yield opened


@pytest.mark.parametrize("way", ["q", "Q", "\x04", "\x03", signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_at_once_and_leaves_the_terminal_as_it_was(tmp_path: Path, way: str | signal.Signals) -> None:
    with top(tmp_path) as opened:
        before = opened.settings
        opened.wait_for(lambda text: "digits-0" in text and "q quits" in text)
        assert opened.settings != before
        if isinstance(way, signal.Signals):
            opened.process.send_signal(way)
        else:
            opened.press(way)
        code, printed = opened.end()
        assert code == 0, printed
        assert opened.settings == before
        assert printed.count(ON) == printed.count(OFF) == 1
        assert printed.rpartition(OFF)[2].endswith(b"the cluster stays\r\n")
