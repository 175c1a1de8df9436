"""The last screen of a run, a launch and an interrupted command, on terminals of two sizes, in colour and without, in a
pipe, and where there are no escape codes."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import pyte
import pytest

from tests.support.terminal import COLOUR, printed_on_a_terminal

PRINTS = """
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from hvdcloud.cli.main import after_interrupt
from hvdcloud.cli.runs import result_parts, show_end, show_pull
from hvdcloud.cluster.cost import Cost
from hvdcloud.cluster.model import Cluster
from hvdcloud.console import Console
from hvdcloud.errors import HvdcloudError
from hvdcloud.lifecycle.down import DownResult
from hvdcloud.lifecycle.logs import Followed, detached
from hvdcloud.checkpoints.pull import PulledRun
from hvdcloud.lifecycle.pull import PullResult
from hvdcloud.lifecycle.run_result import result_of_followed
from hvdcloud.runs.progress import LogReader
from hvdcloud.runs.reports import RankRecord, UploadReport
from hvdcloud.runs.state import RunState

RUN = "20261121-101112-abcdef"
SUCCESS = b"[0] epoch 11/12: loss 0.101, accuracy 0.988\\n[0] epoch 12/12: loss 0.098, accuracy 0.992\\n"
FAILURE = b'''[1] Traceback (most recent call last):
[1]   File "/workspace/my_train.py", line 12, in <module>
[1]     main()
[1]   File "/workspace/my_train.py", line 7, in main
[1]     raise ValueError("my bug")
[1] ValueError: my bug
[launcher] Process 0 exit with status code 1.
[launcher] Traceback (most recent call last):
'''
MISSING = b'''[0] Traceback (most recent call last):
[0]   File "/workspace/my_train.py", line 1, in <module>
[0]     import pandas.io
[0] ModuleNotFoundError: No module named 'pandas'
'''

class Platform:
    costs_money = False


def run(log, *, files=12, complete=True, **state):
    reader = LogReader(elastic=False)
    reader.feed(log)
    uploaded = UploadReport(files=files, complete=complete)
    found = RunState(run=RUN, state="done", started=1.0, ended=81.0, checkpoints=uploaded, **state)
    return result_of_followed("digits", Followed(state=found, log=reader))


def pulled(files=12, complete=True, ended=True):
    entry = PulledRun(run=RUN, folder=Path("/home/me/digits/checkpoints") / RUN, files=files, bytes_fetched=5_700_000,
                      complete=complete)
    return PullResult(cluster="digits", bucket="file:///b", runs=[entry], ended=ended, seconds=1.0)


succeeded = run(SUCCESS, result="succeeded", exit_code=0)
ranks = [RankRecord(rank=number, node=f"digits-{number}", exit_code=1, ended=80.0 + number) for number in (0, 1)]
failed = run(FAILURE, files=0, result="failed", exit_code=1, reason="rank 0 on digits-0 exited with 1", ranks=ranks)
lacking = run(MISSING, files=0, result="failed", exit_code=1, reason="rank 0 on digits-0 exited with 1", ranks=ranks)
lost = run(SUCCESS, complete=False, result="lost", reason="node digits-1 was lost: no heartbeat for 26 s")
gone = DownResult(cluster="digits", deleted=["a", "b", "c"], nothing_to_do=False, seconds=1.5)
cluster = Cluster(name="digits", id="abcdef", provider="gce", owner="me", created=datetime.now(timezone.utc),
                  expected_nodes=2, nodes=(), image="i", bucket="gs://b", dollars_per_hour=0.92)
cost = Cost(dollars=0.113, dollars_per_hour=0.92, seconds=442.0, nodes=2)
console = Console()


def end(result, files=12):
    complete = result.checkpoints_complete
    again = "hvdcloud launch"
    show_end(console, Platform(), result, pulled(files, complete), gone, took=80.4, again=again)


def interrupted(error):
    raise error


SCENES = {
    "launch": lambda: end(succeeded),
    "launch that costs": lambda: end(replace(succeeded, cost=cost)),
    "launch fails": lambda: end(failed, files=0),
    "launch of a script that lacks a package": lambda: end(lacking, files=0),
    "run": lambda: console.result(
        result_parts(succeeded, "1 min 20 s", "$0", succeeded.checkpoints), command="hvdcloud pull"
    ),
    "run of a program": lambda: console.result(result_parts(run(b"[0] hi\\n", files=0, result="succeeded"), "1.2 s")),
    "pull": lambda: show_pull(console, pulled()),
    "pull of a run that ended early": lambda: show_pull(console, pulled(3, False)),
    "pull of a run with its nodes": lambda: show_pull(console, pulled(3, False, False)),
    "exception": lambda: failed.raise_for_failure(),
    "a package is missing": lambda: lacking.raise_for_failure(),
    "killed node": lambda: lost.raise_for_failure(),
    "Ctrl-C in the build": lambda: interrupted(after_interrupt("launch")),
    "Ctrl-C in the run": lambda: interrupted(detached(cluster, RUN, down_when_done=True)),
    "Ctrl-C in run": lambda: interrupted(detached(cluster, RUN, down_when_done=False)),
    "Ctrl-C in pull": lambda: interrupted(after_interrupt("pull")),
}
for scene in sys.argv[1:] or SCENES:
    print(f"=== {scene} ===", flush=True)
    console = Console()
    try:
        SCENES[scene]()
    except HvdcloudError as error:
        console.error(error)
    sys.stdout.flush()
"""
GONE = "digits is gone: 3 objects deleted in 1.5 s; listing again found nothing left"
FOLDER = "/home/me/digits/checkpoints/20261121-101112-abcdef"
TRACEBACK = [
    '    File "my_train.py", line 12, in <module>',
    "      main()",
    '    File "my_train.py", line 7, in main',
    '      raise ValueError("my bug")',
    "  ValueError: my bug",
]
MY_BUG = "error: rank 1 (digits-1) raised ValueError: my bug (my_train.py:7)"
NO_PANDAS = [
    "error: rank 0 (digits-0) raised ModuleNotFoundError: No module named 'pandas' (my_train.py:1)",
    '    File "my_train.py", line 1, in <module>',
    "      import pandas.io",
    "  ModuleNotFoundError: No module named 'pandas'",
    "  run 20261121-101112-abcdef failed after 1 min 20 s, exit code 1; no checkpoints",
]
SCREENS = {
    "launch": [GONE, f"✓ digits trained: accuracy 0.992 · 1 min 20 s · $0 · 12 checkpoints → {FOLDER}"],
    "launch that costs": [
        GONE,
        "cost: $0.11 for 2 nodes, 7 min 22 s at $0.92/h",
        f"✓ digits trained: accuracy 0.992 · 1 min 20 s · $0.11 · 12 checkpoints → {FOLDER}",
    ],
    "launch fails": [
        "run 20261121-101112-abcdef has written no checkpoint",
        GONE,
        MY_BUG,
        *TRACEBACK,
        "  run 20261121-101112-abcdef failed after 1 min 20 s, exit code 1; no checkpoints",
        "  → hvdcloud launch, once it is fixed",
    ],
    "launch of a script that lacks a package": [
        "run 20261121-101112-abcdef has written no checkpoint",
        GONE,
        *NO_PANDAS,
        "  → add the package of pandas to requirements.txt; then hvdcloud launch",
    ],
    "run": [
        "✓ digits trained: accuracy 0.992 · 1 min 20 s · $0 · 12 checkpoint files, all in the bucket → hvdcloud pull"
    ],
    "run of a program": ["✓ run 20261121-101112-abcdef of digits is done · 1.2 s"],
    "pull": [f"✓ 12 checkpoint files of run 20261121-101112-abcdef, verified (5.7 MB fetched) → {FOLDER}"],
    "pull of a run that ended early": [
        f"3 checkpoint files of run 20261121-101112-abcdef, verified (5.7 MB fetched), in {FOLDER}; "
        "not everything reached the bucket before it ended"
    ],
    "pull of a run with its nodes": [
        f"3 checkpoint files of run 20261121-101112-abcdef, verified (5.7 MB fetched), in {FOLDER}; "
        "its nodes may hold more"
    ],
    "exception": [
        MY_BUG,
        *TRACEBACK,
        "  run 20261121-101112-abcdef failed after 1 min 20 s, exit code 1; no checkpoints",
        "  → hvdcloud logs 20261121-101112-abcdef shows its output",
    ],
    "a package is missing": [
        *NO_PANDAS,
        "  → add the package of pandas to requirements.txt; then hvdcloud down and hvdcloud up make the nodes again",
    ],
    "killed node": [
        "error: run 20261121-101112-abcdef lost: the head says: node digits-1 was lost: no heartbeat for 26 s",
        "  run 20261121-101112-abcdef lost after 1 min 20 s; 12 checkpoint files in the bucket, and not all that its "
        "nodes hold",
        "  → hvdcloud logs 20261121-101112-abcdef shows its output; hvdcloud pull 20261121-101112-abcdef fetches its "
        "checkpoints",
    ],
    "Ctrl-C in the build": ["launch is stopped; the same command continues; hvdcloud list shows what there is"],
    "Ctrl-C in the run": [
        "detached: run 20261121-101112-abcdef continues, and then its nodes end themselves; "
        "hvdcloud logs -f --name digits follows it, hvdcloud pull --name digits fetches its checkpoints"
    ],
    "Ctrl-C in run": [
        "detached: run 20261121-101112-abcdef continues, and its nodes stay, at $0.92/h, until hvdcloud down "
        "--name digits; hvdcloud logs -f --name digits follows it"
    ],
    "Ctrl-C in pull": ["pull is stopped; the same command continues; hvdcloud list shows what there is"],
}


ENVIRONMENT = {"PYTHONPATH": str(Path(__file__).parents[2])}
Scenes = Mapping[str, bytes]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    path = tmp_path_factory.mktemp("ends") / "prints.py"
    path.write_text(PRINTS)
    return [sys.executable, str(path)]


def by_scene(printed: bytes) -> Scenes:
    """What a process printed that showed one scene after the other."""
    _, *parts = re.split(rb"^=== (.+) ===\r?\n", printed, flags=re.MULTILINE)
    return dict(zip(map(bytes.decode, parts[::2]), parts[1::2], strict=True))


class Terminals(Protocol):
    """What every scene prints on a terminal of this size, with these variables; one process for all of them."""

    def __call__(self, size: tuple[int, int] = ..., **environ: str) -> Scenes: ...


@pytest.fixture(scope="module")
def on_a_terminal(program: list[str]) -> Terminals:
    @functools.cache
    def shown(size: tuple[int, int], *variables: tuple[str, str]) -> Scenes:
        environ = {**ENVIRONMENT, "TERM": "xterm-256color", **dict(variables)}
        exit_code, printed = printed_on_a_terminal(program, cwd=Path.cwd(), environ=environ, size=size)
        assert exit_code == 0, printed
        return by_scene(printed)

    return lambda size=(80, 24), **environ: shown(size, *environ.items())


@pytest.fixture(scope="module")
def piped(program: list[str]) -> Scenes:
    environ = {**os.environ, **ENVIRONMENT, "PYTHONIOENCODING": "utf-8"}
    return by_scene(subprocess.run(program, stdout=-1, stderr=subprocess.STDOUT, check=True, env=environ).stdout)


def wrapped(lines: list[str], columns: int) -> list[str]:
    """On a terminal."""
    return [line[at : at + columns].rstrip() for line in lines for at in range(0, len(line), columns)]


@pytest.mark.parametrize("scene", SCREENS)
def test_a_terminal_shows_it_whole(on_a_terminal: Terminals, scene: str) -> None:
    for size in ((80, 24), (140, 45)):
        screen = pyte.Screen(*size)
        pyte.ByteStream(screen).feed(on_a_terminal(size)[scene])
        assert [line.rstrip() for line in screen.display if line.strip()] == wrapped(SCREENS[scene], size[0])


@pytest.mark.parametrize("scene", ["launch", "exception", "Ctrl-C in the run"])
def test_a_pipe_a_dumb_terminal_and_one_without_colours_get_the_same_lines(
    on_a_terminal: Terminals, piped: Scenes, scene: str
) -> None:
    assert piped[scene].decode().splitlines() == SCREENS[scene]
    # Ctrl-C leaves `^C` on a terminal, and has a line of its own after it.
    dumb = on_a_terminal(TERM="dumb")[scene].decode().splitlines()
    assert [line for line in dumb if line] == SCREENS[scene]
    assert not COLOUR.search(on_a_terminal(NO_COLOR="1")[scene])


def test_what_ended_well_is_green(on_a_terminal: Terminals) -> None:
    assert b"\x1b[32m\xe2\x9c\x93 digits trained" in on_a_terminal()["launch"]


def test_an_error_is_red_and_ctrl_c_is_none(on_a_terminal: Terminals) -> None:
    assert b"\x1b[31merror: rank 1" in on_a_terminal()["exception"]
    for scene in SCREENS:
        if scene.startswith("Ctrl-C"):
            printed = on_a_terminal()[scene]
            assert b"error" not in printed
            assert not COLOUR.search(printed)
