"""Compute Engine: a client died between two attempts of a run. The next command continues within what is left of the
limits, or deletes what exists, at whichever API call it dies too.

Two nodes cost $0.92/h here (tests/support/price_table.py). Of limits.max_cost of $1.00, an attempt of $0.50 leaves
$0.50, which buys 3600 x 0.50 / 0.92 = 1956.5 s; a VM may take 60 s of that to start and 30 s to end.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.state import ClusterState
from hvdcloud.runs.retry import BEGUN, Attempt, Pending
from tests.support.gce_records import RecordsCloud, came_up, make, records_cloud
from tests.support.harness import Project, Screen, until
from tests.support.impatient import NOTHING_LATE
from tests.support.price_table import write_prices

pytestmark = pytest.mark.engine

BULK_INSERT = "compute.instances.bulkInsert"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> Iterator[RecordsCloud]:
    with records_cloud(tmp_path_factory.mktemp("cloud"), engine) as cloud:
        yield cloud


@pytest.fixture
def project(tmp_path: Path, cloud: RecordsCloud) -> Iterator[Project]:
    """Of two Spot VMs, on a cloud that is empty before and after."""
    project = cloud.project(
        tmp_path,
        gce={"spot": "none", "ssh": {"source": "198.51.100.7/32"}},
        limits={"max_run_duration": "2h", "max_cost": 1.0},
        run={"retry": 3},
    )
    write_prices(project.state)
    yield project
    left = cloud.left()
    cloud.cloud.emulator.reset()
    assert left == []


def lost(project: Project, *, cluster_id: str = "aaaaaa", dollars: float = 0.5, left_seconds: float = 7000.0) -> None:
    """Write down what a client does that is killed as soon as it knows that the run's nodes are lost."""
    attempt = Attempt(
        run=f"20261124-081000-{cluster_id}", cluster_id=cluster_id, result="lost", cause="preempted", dollars=dollars
    )
    pending = Pending(attempts=(attempt,), ends=time.time() + left_seconds)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVDCLOUD_STATE_DIR", str(project.state))
        state = ClusterState(project.name)
        state.make()
        state.journal.record(BEGUN, cluster_id=cluster_id, **pending.to_json())


def preempted(cloud: RecordsCloud, project: Project) -> None:
    """A cluster whose VMs were all taken away, and whose client was killed."""
    make(project)
    (found,) = project.hvdcloud("list", "--json").json["result"]
    emulator = cloud.cloud.emulator
    for vm in emulator.state.instances():
        emulator.preempt(vm["zone"].rpartition("/")[2], vm["name"])
    until(lambda: not emulator.state.instances(), seconds=10, what="the VMs to be gone")
    lost(project, cluster_id=found["id"])


def limits(cloud: RecordsCloud) -> list[int]:
    """`maxRunDuration` of every request for VMs, in seconds."""
    entries = [entry for entry in cloud.cloud.emulator.log.entries() if entry.method == BULK_INSERT]
    return [int(entry.body["instanceProperties"]["scheduling"]["maxRunDuration"]["seconds"]) for entry in entries]


@pytest.mark.parametrize(
    ("dollars", "left_seconds", "most"), [(0.5, 7000.0, 1866), (0.75, 7000.0, 888), (0.5, 1000.0, 940)]
)
def test_the_next_attempt_lives_as_long_as_the_earlier_ones_have_left(
    cloud: RecordsCloud, project: Project, dollars: float, left_seconds: float, most: int
) -> None:
    lost(project, dollars=dollars, left_seconds=left_seconds)
    before = len(limits(cloud))
    ended = came_up(project.hvdcloud("up", expect=None))
    assert "interrupted between attempts 1 and 2 of a run; up continues" in ended.err
    assert f"${1.0 - dollars:.2f} and " in ended.err
    (seconds,) = limits(cloud)[before:]
    if left_seconds < 7000:
        # Some of them pass until the request.
        assert most - 300 < seconds <= most
    else:
        assert seconds == most


def test_an_attempt_that_the_money_does_not_pay_for_is_not_made(cloud: RecordsCloud, project: Project) -> None:
    lost(project, dollars=0.98)
    before = len(limits(cloud))
    assert "limits.max_cost" in project.hvdcloud("up", expect=2).err
    assert len(limits(cloud)) == before


def test_nothing_is_continued_after_down(cloud: RecordsCloud, project: Project) -> None:
    lost(project)
    project.hvdcloud("down")
    before = len(limits(cloud))
    assert "continues" not in came_up(project.hvdcloud("up", expect=None)).err
    # All of the two hours, and all of the dollar: 3600 / 0.92 = 3913.04 s.
    assert limits(cloud)[before:] == [3913 - 90]


def test_ctrl_c_while_there_is_no_room_leaves_nothing_and_gives_it_up(cloud: RecordsCloud, project: Project) -> None:
    lost(project)
    cloud.fail({"stockout": {}}, method=BULK_INSERT, times=None)
    with project.started("up") as process:
        screen = Screen(process)
        screen.wait_for("no zone has room; trying until")
        process.send_signal(signal.SIGINT)
        screen.end(within=60)
    cloud.cloud.emulator.faults.clear()
    assert process.returncode == 130
    assert "up of t-gce was interrupted between two attempts; no node of it is left" in screen.text
    assert cloud.there() == []
    assert "continues" not in came_up(project.hvdcloud("up", expect=None)).err


@pytest.mark.parametrize(
    ("when", "method", "command"),
    [
        ("before", "compute.firewalls.delete", "up"),
        ("after", "compute.firewalls.delete", "up"),
        ("before", BULK_INSERT, "up"),
        ("after", BULK_INSERT, "up"),
        ("after", "compute.firewalls.insert", "up"),
        ("after", "compute.zoneOperations.wait", "up"),
        ("after", "compute.instances.getGuestAttributes", "up"),
        # `up` ends with `down`, too; here it is the first to find what is left.
        ("after", "compute.firewalls.delete", "down"),
        ("after", BULK_INSERT, "down"),
    ],
)
def test_a_client_that_is_killed_between_the_old_nodes_and_the_new_ones_leaves_nothing_that_bills(
    cloud: RecordsCloud, project: Project, when: str, method: str, command: str
) -> None:
    preempted(cloud, project)
    faults = cloud.cloud.emulator.faults
    cloud.fail({"hold": when}, method=method)
    with project.started("up") as process:
        screen = Screen(process)
        until(lambda: faults.plain()["held"] or process.poll() is not None, seconds=60, what=method)
        assert process.poll() is None, screen.text
        process.kill()
        screen.end(within=30)
    until(lambda: not faults.plain()["held"], seconds=10, what="the held requests to be dropped")
    faults.clear()
    cloud.list_shows_the_truth(project)
    project = replace(project, first=NOTHING_LATE)
    if command == "up":
        assert "continues" in came_up(project.hvdcloud("up", expect=None)).err
    project.hvdcloud("down")
    assert cloud.there() == []
    assert cloud.left() == []
