"""What progress looks like: on terminals of two sizes, with colours and without, and in a pipe."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.console import Console
from hvdcloud.image.build.buildkit import _Log
from hvdcloud.image.engine_stream import BuildEvent
from hvdcloud.lifecycle.build import shown_on
from hvdcloud.lifecycle.pull import _unfinished_bytes
from hvdcloud.live_steps import LiveSteps, rows_on
from hvdcloud.steps import Steps
from hvdcloud.storage.base import PARTIAL_SUFFIX
from tests.golden import assert_golden
from tests.support.build_steps import build_step
from tests.support.screens import Clock, Screen


@contextlib.contextmanager
def drawn_on(screen: Screen, clock: Clock) -> Iterator[LiveSteps]:
    """Steps that are drawn when `rows.refresh` is called."""
    with LiveSteps(rows_on(screen, clock=clock, by_itself=False)) as steps:
        yield steps


# What docker prints, each line after so many seconds.
FIRST_BUILD: Sequence[tuple[float, str]] = [
    (0.2, "#4 [tools 1/7] FROM docker.io/library/debian:bookworm-slim"),
    (0.1, "#4 CACHED"),
    (0.0, "#5 [tools 2/7] RUN --mount=type=cache,target=/mnt apt-get update -q     && apt-get install -y g++"),
    (21.0, "#5 20.9 Setting up g++ (4:12.2.0-3) ..."),
    (0.0, "#5 DONE 21.0s"),
    (0.3, '#9 [framework 3/3] RUN /opt/build/framework.sh "$FRAMEWORK_PACKAGE" "/opt/locks/$FRAMEWORK_LOCK"'),
    (4.0, "#9 4.001 Collecting torch==2.13.0+cpu"),
    (44.0, "#9 DONE 48.0s"),
    (
        0.1,
        "#14 [horovod 6/6] RUN --mount=type=cache,target=/mnt     : compile Horovod, once, about 4 minutes; set -eu",
    ),
    (133.0, "#14 132.9 [ 43%] Building CXX object horovod/torch/CMakeFiles/pytorch.dir/mpi_ops_v2.cc.o with -O3"),
]


def show_build(steps: Steps, clock: Clock, said: Sequence[tuple[float, str]]) -> None:
    tell = shown_on(Console(err=io.StringIO()), steps)
    step = build_step()
    tell(BuildEvent(kind="image", text=step.what))
    log = _Log(step, tell)
    for wait, line in said:
        clock.now += wait
        log.read(line)


def first_build(steps: Steps, clock: Clock, _: Path) -> None:
    show_build(steps, clock, FIRST_BUILD)


def up(steps: Steps, clock: Clock, _: Path) -> None:
    steps.update("digits-0", "booting")
    steps.update("digits-1-with-a-long-name", "pulling the image", done=43.0, total=100.0)
    clock.now += 12.0
    steps.finish("digits-0", "ready")
    clock.now += 68.0


def syncing(steps: Steps, clock: Clock, _: Path) -> None:
    sent, total = 0, 600_000_000
    for _ in range(2):
        steps.update("run", "sending the code", done=sent, total=total, in_bytes=True)
        if isinstance(steps, LiveSteps):
            steps.rows.refresh()
        clock.now += 4.0
        sent += 52_000_000
    steps.update("run", "sending the code", done=sent, total=total, in_bytes=True)


def starting(steps: Steps, clock: Clock, _: Path) -> None:
    steps.update("run", "starting the ranks")
    clock.now += 12.0


def pushing(steps: Steps, clock: Clock, _: Path) -> None:
    steps.update("push", "8 of 13 layers", done=380e6, total=1.2e9, in_bytes=True)
    clock.now += 23.0


SCENES: Sequence[Callable[[Steps, Clock, Path], None]] = [
    first_build,
    up,
    syncing,
    starting,
    pushing,
]


def test_a_pipe_and_a_dumb_terminal_get_a_line_for_each_step_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stages are said once they have taken a while; here all of them do.
    monkeypatch.setattr(threading, "Timer", Immediately)
    lines: list[str] = []
    for scene in SCENES:
        with Steps(lines.append) as steps:
            scene(steps, Clock(), tmp_path)
    assert_golden("progress-piped.txt", "\n".join(lines) + "\n")


@dataclass
class Immediately:
    """A timer that does not wait."""

    seconds: float
    act: Callable[..., None]
    args: tuple[Any, ...] = ()

    def start(self) -> None:
        self.act(*self.args)

    def cancel(self) -> None:
        pass


# --- done means done -------------------------------------------------------------------------------------------------


def test_the_start_of_the_last_step_is_not_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, screen = Clock(), Screen(monkeypatch)
    with drawn_on(screen, clock) as steps:
        show_build(steps, clock, [(1.0, "#9 [last 1/1] RUN make"), (200.0, "#9 199.9 [100%] Built target pytorch")])
        steps.rows.refresh()
        assert "✓" not in screen.text
        assert "100 %" not in screen.text
        assert "[last 1/1] RUN make" in screen.text
        assert "3 min 20 s" in screen.text
        clock.now += 1.0
        before = screen.text
        steps.rows.refresh()
        assert screen.text != before


def test_what_counts_to_its_total_is_done_when_it_has_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen(monkeypatch)
    with drawn_on(screen, Clock()) as steps:
        steps.update("doctor", "disk", done=20.0, total=20.0)
        steps.rows.refresh()
        assert "99 %" in screen.text
        steps.finish("doctor")
        steps.rows.refresh()
    assert screen.text.split() == ["✓", "doctor", "done"]


def test_instructions_that_run_side_by_side_have_a_line_each_with_their_own_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, screen = Clock(), Screen(monkeypatch)
    with drawn_on(screen, clock) as steps:
        log = _Log(build_step(), shown_on(Console(err=io.StringIO()), steps))
        log.read("#5 [tools 2/6] RUN apt-get update")
        log.read("#6 [donor 1/1] COPY a b")
        clock.now += 5
        for line in ("#5 4.2 Setting up g++", "#6 4.5 copied 3 GB", "#5 4.3 Setting up make"):
            log.read(line)
        steps.rows.refresh()
        shown = [line.split() for line in screen.text.splitlines()]
        assert [" ".join(words[1:] if words[1] == "image" else words) for words in shown] == [
            "image [tools 2/6] RUN apt-get update 5 s",
            "Setting up make",
            "image [donor 1/1] COPY a b 5 s",
            "copied 3 GB",
        ]
        log.read("#5 DONE 5.0s")
        steps.rows.refresh()
        assert screen.text.splitlines()[0][1:].startswith(" image  [donor 1/1] COPY a b")


# --- Ctrl-C ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_leaves_no_row_and_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, screen = Clock(), Screen(monkeypatch)
    console = Console(err=screen)
    console.say("before")
    with contextlib.suppress(KeyboardInterrupt), drawn_on(screen, clock) as steps:
        steps.update("digits-0", "booting " * 20)
        steps.finish("digits-1", "ready")
        steps.rows.refresh()
        for _ in range(5):
            screen.echo("^C")
            clock.now += 1.0
            steps.rows.refresh()
            assert screen.text.count("digits-0") == 1
        screen.echo("^C")
        raise KeyboardInterrupt
    console.say("after")
    assert screen.text == "before\nafter"


# --- what takes no time ----------------------------------------------------------------------------------------------


def test_what_takes_less_than_a_second_has_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, screen = Clock(), Screen(monkeypatch)
    with drawn_on(screen, clock) as steps:
        steps.update("digits", "looking for the cluster", after=1.0)
        clock.now += 0.9
        steps.rows.refresh()
        assert screen.text == ""
        clock.now += 0.2
        steps.rows.refresh()
        assert "looking for the cluster" in screen.text
    assert screen.text == ""


def test_a_pipe_hears_of_a_wait_only_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[Immediately] = []

    class Later(Immediately):
        def start(self) -> None:
            timers.append(self)

    monkeypatch.setattr(threading, "Timer", Later)
    lines: list[str] = []
    with Steps(lines.append) as steps:
        steps.update("long", "waiting", after=1.0)
        steps.update("short", "waiting", after=1.0)
        steps.drop("short")
        for timer in timers:
            timer.act(*timer.args)
    assert lines == ["long: waiting"]


def test_threads_beside_the_command_show_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdcloud.console.NOTICEABLE_SECONDS", 0.0)
    err = io.StringIO()
    console = Console(out=io.StringIO(), err=err)

    def wait() -> None:
        with console.waiting("digits", "looking"):
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert err.getvalue() == ""


def test_a_pull_counts_the_bytes_of_files_that_are_not_whole_yet(tmp_path: Path) -> None:
    part = tmp_path / "epoch" / f".1-1{PARTIAL_SUFFIX}"
    part.parent.mkdir()
    part.write_bytes(b"x" * 40_960)
    (tmp_path / "whole.pt").write_bytes(b"x" * 4096)
    assert _unfinished_bytes(tmp_path) == part.stat().st_blocks * 512 > 0
    part.unlink()
    assert _unfinished_bytes(tmp_path) == 0
