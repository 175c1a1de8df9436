"""The terminal of `hvdcloud top`: how it is left, and that it is then as it was."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.terminal import COLOUR, Terminal, terminal_with

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
        code, printed = opened.end(within=5.0)
        assert code == 0, printed
        assert opened.settings == before
        assert printed.count(ON) == printed.count(OFF) == 1
        assert printed.rpartition(OFF)[2].endswith(b"the cluster stays\r\n")


def test_no_color_means_none_and_no_color_of_the_background_either(tmp_path: Path) -> None:
    with top(tmp_path, NO_COLOR="1") as opened:
        opened.wait_for(lambda text: "digits-0" in text and "q quits" in text)
        opened.press("q")
        _, printed = opened.end(within=5.0)
        assert not COLOUR.search(printed)
    with top(tmp_path) as opened:
        opened.wait_for(lambda text: "digits-0" in text and "q quits" in text)
        opened.press("q")
        _, printed = opened.end(within=5.0)
        # The background is the terminal's own.
        assert {found[0] for found in re.findall(rb"[\[;]((4[0-8])|(10[0-7]))[;m]", printed)} == set()
        assert COLOUR.search(printed)


def test_a_bug_is_reported_as_everywhere_on_a_terminal_that_is_as_it_was(tmp_path: Path) -> None:
    with top(tmp_path, broken=True) as opened:
        before = opened.settings
        code, printed = opened.end(within=20.0)
        assert code == 1
        assert opened.settings == before
        assert b"a bug in hvdcloud: ValueError: no such figure" in printed.rpartition(OFF)[2]


def test_it_ends_when_its_window_is_closed(tmp_path: Path) -> None:
    with top(tmp_path) as opened:
        opened.wait_for(lambda text: "digits-0" in text)
        opened.close()
        opened.process.wait(timeout=40.0)


def test_its_last_node_is_reached_by_keys_and_by_the_wheel_of_a_real_terminal(tmp_path: Path) -> None:
    with top(tmp_path) as opened:
        opened.wait_for(lambda text: "digits-0 " in text)
        opened.press("\x1b[F")
        opened.wait_for(lambda text: "digits-63" in text)
        opened.press("\x1b[H")
        opened.wait_for(lambda text: "digits-63" not in text and "digits-0 " in text)
        for _ in range(100):
            opened.press("\x1b[<65;10;10M")
        opened.wait_for(lambda text: "digits-63" in text)
