"""Money as a person sees it: what `up` and `launch` ask, what `status`, `list` and `down` say, and that max_cost holds.

The prices are those of tests/support/price_table.py: two nodes cost 2 x 0.46 = $0.92/h in us-central1 and
2 x 0.61 = $1.22/h in us-west1. For limits.max_run_duration of 2 h, the worst case
is half a minute more, and a minute for the start: 0.92 x 7290 / 3600 = $1.86 and 1.22 x 7290 / 3600 = $2.47.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.lifecycle.up import MAKING_SECONDS
from tests.support.gce_records import ZONES, A, RecordsCloud, came_up, make, records_cloud
from tests.support.harness import HVDCLOUD, Project, until
from tests.support.price_table import write_prices

pytestmark = pytest.mark.engine
CHANGES = {"POST", "DELETE"}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> Iterator[RecordsCloud]:
    with records_cloud(tmp_path_factory.mktemp("cloud"), engine) as cloud:
        yield cloud


@pytest.fixture
def empty(cloud: RecordsCloud) -> Iterator[RecordsCloud]:
    """The cloud without anything in it, before and after."""
    yield cloud
    left = cloud.left()
    cloud.cloud.emulator.reset()
    assert left == []


def project_of(
    cloud: RecordsCloud, root: Path, name: str = "t-gce", *, zones: Sequence[str] = ZONES, **limits: Any
) -> Project:
    """Of two nodes that everybody on the internet could reach."""
    project = cloud.project(
        root,
        name,
        gce={"zones": list(zones), "ssh": {"source": "198.51.100.7/32"}},
        limits={"max_run_duration": "2h", **limits},
    )
    write_prices(project.state)
    return project


def requested(cloud: RecordsCloud) -> list[str]:
    """What has been asked for that changes anything; IAM's questions are only POSTs in form."""
    entries = cloud.cloud.emulator.log.entries()
    return [entry.method for entry in entries if entry.http in CHANGES and entry.method.startswith("compute.")]


@contextmanager
def at_a_terminal(project: Project, *args: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command whose keyboard and screen are a terminal: the process, and the terminal's other end."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*HVDCLOUD, *args],
        cwd=project.folder,
        env=project.env(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours)


def read_until(terminal: int, words: str | None) -> str:
    """What comes on the screen until these words, or to the end."""
    shown = b""
    with suppress(OSError):  # how a terminal ends whose program is gone
        while words is None or words.encode() not in shown:
            data = os.read(terminal, 65536)
            if not data:
                break
            shown += data
    text = shown.decode(errors="replace")
    assert words is None or words in text, text
    return text


def test_what_nodes_that_deleted_themselves_left_does_not_stand_in_the_way(empty: RecordsCloud, tmp_path: Path) -> None:
    project = project_of(empty, tmp_path)
    make(project, age=MAKING_SECONDS)
    emulator = empty.cloud.emulator
    for vm in emulator.state.instances():
        emulator.preempt(vm["zone"].rpartition("/")[2], vm["name"])
    until(lambda: not emulator.state.instances(), what="the VMs to be gone")
    ended = came_up(project.hvdcloud("up", expect=None))
    assert "the nodes of an earlier t-gce are gone; deleting what is left of it: firewall hvdcloud-t-gce-" in ended.err


# --- asking -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["up"], ["up", "--json"], ["launch"], ["launch", "--json"]])
def test_without_a_terminal_nothing_is_made_above_the_limit(
    empty: RecordsCloud, tmp_path: Path, command: list[str]
) -> None:
    project = project_of(empty, tmp_path, ask_above=2.46)
    ended = project.hvdcloud(*command, expect=2)
    assert "cluster t-gce may cost $2.47, more than limits.ask_above of $2.46, and there is no terminal" in ended.err
    for remedy in ("--yes", "limits.max_cost", "limits.ask_above"):
        assert remedy in ended.err
    assert requested(empty) == []
    # Before the image is built, which takes long.
    assert not re.search(r"^image: (?!asking)", ended.err, re.MULTILINE)
    if "--json" in command:
        assert ended.json["exit_code"] == 2


@pytest.mark.parametrize("limits", [{}, {"ask_above": 2.48}, {"ask_above": None}], ids=["default", "more", "never"])
def test_below_the_limit_there_is_no_question(empty: RecordsCloud, tmp_path: Path, limits: dict[str, Any]) -> None:
    ended = came_up(project_of(empty, tmp_path, **limits).hvdcloud("up", expect=None))
    assert "\n$0.92/h, at worst $2.47\n" in ended.err
    assert ended.err.count("at worst $2.47\n") == 2, "once as a note about the most expensive zone, once for all"


QUESTION = "cluster t-gce may cost $2.47, more than limits.ask_above of $1.00; continue? [y/N] "


@pytest.mark.parametrize("answer", ["n\n", "\n", "what?\n", "\x04"], ids=["no", "enter", "what", "end of input"])
def test_at_a_terminal_whatever_is_not_yes_is_no(empty: RecordsCloud, tmp_path: Path, answer: str) -> None:
    with at_a_terminal(project_of(empty, tmp_path, ask_above=1), "up") as (process, terminal):
        assert "$0.92/h, at worst $2.47" in read_until(terminal, QUESTION)
        os.write(terminal, answer.encode())
        assert "t-gce was not confirmed; nothing was made" in read_until(terminal, None)
        assert process.wait(timeout=80) == 130
    assert requested(empty) == []


# --- limits.max_cost --------------------------------------------------------------------------------------------------


# --- status, list, down -----------------------------------------------------------------------------------------------


def older(cloud: RecordsCloud, name: str, *, minutes: float, ends_in: float | None = None) -> datetime | None:
    """Make every VM of a cluster older, so that its time is up in this many minutes from now."""
    now = datetime.now(timezone.utc)
    end = None if ends_in is None else now + timedelta(minutes=ends_in)
    world = cloud.cloud.emulator.state
    with world.lock:
        for vm in world.all_vms():
            if vm.resource["labels"]["hvdcloud-cluster"] != name:
                continue
            vm.update(
                creationTimestamp=(now - timedelta(minutes=minutes)).isoformat(timespec="milliseconds"),
                lastStartTimestamp=(now - timedelta(minutes=minutes - 0.2)).isoformat(timespec="milliseconds"),
            )
            if end is not None:
                scheduling = {"terminationTimestamp": end.isoformat(timespec="milliseconds")}
                vm.update(resourceStatus={"scheduling": scheduling})
    return end


def said(project: Project, *args: str) -> str:
    return project.hvdcloud(*args).out


def test_status_tells_what_it_cost_and_will_cost_at_worst(empty: RecordsCloud, tmp_path: Path) -> None:
    project = project_of(empty, tmp_path)
    make(project)
    end = older(empty, "t-gce", minutes=20, ends_in=100)
    assert end is not None
    # 0.92 x 20 / 60 = 0.3067; and 100 min 30 s more: 0.92 x 100.5 / 60 = 1.541
    cluster = project.hvdcloud("status", "--json").json["result"]["cluster"]
    assert cluster["dollars_per_hour"] == pytest.approx(0.92)
    assert cluster["dollars_so_far"] == pytest.approx(0.3067, abs=0.003)
    assert cluster["worst_case_dollars"] == pytest.approx(0.3067 + 1.541, abs=0.003)
    line = f"cost so far: $0.31, at worst $1.85 (deleted by Compute Engine at {end:%H:%M:%S}Z if nothing else does)\n"
    assert said(project, "status").endswith(line)
    rows = [re.split(r" {2,}", row) for row in said(project, "list").splitlines()]
    assert rows[0] == ["CLUSTER", "NODES", "STATE", "$/H", "SO FAR", "AT WORST", "OWNER", "CREATED"]
    assert rows[1][:6] == ["t-gce", "2/2", "whole", "0.92", "0.31", "1.85"]
    assert len(rows) == 2, "one cluster is its own total"
    assert re.search(r"listing again found nothing left; it cost \$0\.31$", said(project, "down"), flags=re.MULTILINE)


def test_a_node_that_is_off_has_no_end_and_one_that_is_gone_is_not_counted(empty: RecordsCloud, tmp_path: Path) -> None:
    project = project_of(empty, tmp_path)
    make(project)
    older(empty, "t-gce", minutes=60, ends_in=60)
    world = empty.cloud.emulator.state
    empty.cloud.emulator.kill(A, "t-gce-1")
    until(lambda: "TERMINATED" in [vm["status"] for vm in world.instances()], what="the VM to be off")
    # 0.46 + 0.46 until now; then 0.46 and the disk's 0.01
    text = said(project, "status")
    assert "cost so far: $0.92, and $0.47/h until hvdcloud down: nothing else ends it" in text
    assert "  t-gce-1 is off, and its disk still costs" in text
    rows = [re.split(r" {2,}", row) for row in said(project, "list").splitlines()]
    assert rows[1][3:6] == ["0.47", "0.92", "no end"]
    empty.cloud.emulator.preempt(A, "t-gce-0")
    until(lambda: len(world.instances()) == 1, what="the VM to be gone")
    text = said(project, "status")
    # What is left is the one that is off: 0.46, and its disk.
    assert "cost so far: $0.46, and $0.01/h until hvdcloud down" in text
    assert "  without 1 node that ended before" in text
    assert "; what was left of it cost $0.46" in said(project, "down", "--force")


# --- a head on demand, and workers on Spot ----------------------------------------------------------------------------
#
# A Spot worker costs 2 x 0.010 + 7.5 x 0.002 + 0.10 + 0.010 + 0.005 = $0.15/h in us-central1, and in us-west1
# 2 x 0.015 + 7.5 x 0.003 + 0.15 + 0.012 + 0.006 = $0.2205/h. With a head like them on demand, four nodes cost
# 0.46 + 3 x 0.15 = $0.91/h and 0.61 + 3 x 0.2205 = $1.2715/h.
