"""Compute Engine: a command that dies at any of its API calls. `list` shows the truth, and `down` leaves nothing."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.interrupts import SIGNALS
from tests.support.gce_records import RecordsCloud, came_up, make
from tests.support.harness import Ended, Project, Screen, until
from tests.support.impatient import NOTHING_LATE
from tests.support.kill_points import kill_points

pytestmark = pytest.mark.engine

BULK_INSERT = "compute.instances.bulkInsert"
WAIT = "compute.zoneOperations.wait"
READ = "compute.instances.getGuestAttributes"
UP, DOWN = 35, 12
"""How many requests `up` makes until the nodes are asked how far they are, and `down` in all; a few more do no harm."""
MAKING = (BULK_INSERT, "compute.firewalls.insert")
DELETING = ("compute.instances.delete", "compute.firewalls.delete")


@pytest.fixture
def project(tmp_path: Path, records: RecordsCloud) -> Iterator[Project]:
    """A project on a cloud that is empty, before and after."""
    delays = dataclasses.replace(records.cloud.emulator.state.delays)
    yield records.project(tmp_path)
    left = records.left()
    records.cloud.emulator.reset()
    records.cloud.emulator.state.delays = delays
    assert left == []


def killed_at(
    records: RecordsCloud, project: Project, when: str, method: str, number: int, *args: str, by: int = signal.SIGKILL
) -> Ended:
    """Start a command and end it by a signal as soon as one of its calls waits: for its effect, or for its answer.

    One that makes no such call ends by itself.
    """
    faults = records.cloud.emulator.faults
    records.fail({"hold": when}, method=method, skip=number)
    with project.started(*args) as process:
        screen = Screen(process)
        until(lambda: faults.plain()["held"] or process.poll() is not None, what=f"{method}")
        process.send_signal(by)
        if by != signal.SIGKILL and method in (*MAKING, *DELETING):
            until(lambda: ignores(process.pid, SIGNALS), what="the signal to be taken")
            faults.release()
        code = screen.end()
    drop_held(records)
    return Ended(code, screen.text, screen.text)


def ignores(pid: int, signals: Collection[int]) -> bool:
    """Whether a process ignores these signals now, as one does that was interrupted and cleans up."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return all(int(fields["SigIgn"], 16) >> (number - 1) & 1 for number in signals)


def drop_held(records: RecordsCloud) -> None:
    """A request that waits for its effect has none once the client is seen to be gone."""
    faults = records.cloud.emulator.faults
    until(lambda: not faults.plain()["held"], what="the held requests to be dropped")
    faults.clear()


def down_leaves_nothing(records: RecordsCloud, project: Project) -> None:
    dataclasses.replace(project, first=NOTHING_LATE).hvdcloud("down")
    assert records.left() == []
    assert records.there() == []
    again = project.hvdcloud("down", "--json").json["result"]
    assert again["nothing_to_do"]
    assert again["deleted"] == []


# --- up --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", kill_points(UP))
def test_down_leaves_nothing_of_an_up_that_was_killed_at_this_request(
    records: RecordsCloud, project: Project, number: int
) -> None:
    killed_at(records, project, "after", "*", number, "up")
    records.list_shows_the_truth(project)
    down_leaves_nothing(records, project)


def test_what_a_killed_up_had_asked_for_is_deleted_even_if_it_appears_after_all_the_rest(
    records: RecordsCloud, project: Project
) -> None:
    records.fail({"delay": 2.5}, method=BULK_INSERT)
    log = records.cloud.emulator.log
    with project.started("up") as process:
        Screen(process)
        until(lambda: [entry for entry in log.entries() if entry.method == BULK_INSERT], what="the request")
        until(lambda: len(records.there()) >= 2, what="both firewall rules")
        process.kill()
    assert [entry.status for entry in log.entries() if entry.method == BULK_INSERT] == [None]
    gone = project.hvdcloud("down", "--json").json["result"]["deleted"]
    assert {name.split()[0] for name in gone} == {"firewall", "VM"}
    assert records.left() == []


@pytest.mark.parametrize("method", [BULK_INSERT, WAIT, pytest.param(READ, marks=pytest.mark.nightly)])
def test_up_after_a_killed_up_clears_its_remains_and_begins_again(
    records: RecordsCloud, project: Project, method: str
) -> None:
    killed_at(records, project, "after", method, 0, "up")
    again = came_up(dataclasses.replace(project, first=NOTHING_LATE).hvdcloud("up", expect=None))
    assert "an earlier `up` of t-gce was interrupted" in again.err
    assert records.left() == []


# --- what only some ways of making nodes make -----------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "placement": {"provisioning": "standard"},
    "reservation": {"provisioning": "reservation", "reservation": "mine"},
    "flex-start": {"provisioning": "flex-start"},
}
MADE_BY = {
    "placement": ("compute.resourcePolicies.insert", *MAKING),
    "reservation": (BULK_INSERT,),
    "flex-start": (
        "compute.instanceTemplates.insert",
        "compute.instanceGroupManagers.insert",
        "compute.instanceGroupManagerResizeRequests.insert",
    ),
}
DELETED_BY = {
    "placement": ("compute.resourcePolicies.delete",),
    "reservation": ("compute.instances.delete",),
    "flex-start": ("compute.instanceGroupManagers.delete", "compute.instanceTemplates.delete"),
}


def of_two_l4(records: RecordsCloud, root: Path, way: str) -> Project:
    """Whose machine type takes a placement policy, and flex-start; in a zone with a reservation for them."""
    records.cloud.emulator.reserve("mine", zone="us-central1-b", count=2, machine_type="g2-standard-8")
    records.cloud.emulator.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 16, region="us-central1")
    return records.project(root, gce={"machine_type": "g2-standard-8", "gpu": None, **WAYS[way]})


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.nightly), "after"])
@pytest.mark.parametrize(("way", "method"), [(way, method) for way in WAYS for method in MADE_BY[way]])
def test_down_leaves_nothing_of_an_up_that_was_killed_as_it_made_this(
    records: RecordsCloud, project: Project, tmp_path: Path, way: str, method: str, when: str
) -> None:
    project = of_two_l4(records, tmp_path / "l4", way)
    killed_at(records, project, when, method, 0, "up")
    records.list_shows_the_truth(project)
    down_leaves_nothing(records, project)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(UP + 10))
@pytest.mark.parametrize("way", WAYS)
def test_down_leaves_nothing_of_an_up_of_this_way_that_was_killed_at_any_request(
    records: RecordsCloud, project: Project, tmp_path: Path, way: str, number: int
) -> None:
    project = of_two_l4(records, tmp_path / "l4", way)
    killed_at(records, project, "after", "*", number, "up")
    records.list_shows_the_truth(project)
    down_leaves_nothing(records, project)


@pytest.mark.parametrize(("way", "method"), [(way, method) for way in WAYS for method in DELETED_BY[way]])
def test_down_finishes_what_a_killed_down_of_this_way_began(
    records: RecordsCloud, project: Project, tmp_path: Path, way: str, method: str
) -> None:
    project = of_two_l4(records, tmp_path / "l4", way)
    make(project)
    killed_at(records, project, "after", method, 0, "down")
    records.list_shows_the_truth(project)
    down_leaves_nothing(records, project)


# --- the roll back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.nightly), "after"])
@pytest.mark.parametrize("method", [*DELETING, "compute.disks.aggregatedList"])
def test_down_finishes_a_roll_back_that_was_killed(
    records: RecordsCloud, project: Project, when: str, method: str
) -> None:
    records.fail({"fail_ready": {"step": "pulling", "error": "scripted"}}, instance="t-gce-1")
    # The first list of disks is that of `up`, before anything is made.
    killed_at(records, project, when, method, 0 if method in DELETING else 1, "up")
    records.list_shows_the_truth(project)
    dataclasses.replace(project, first=NOTHING_LATE).hvdcloud("down")
    assert records.there() == []


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("by", "when", "method"),
    [
        (signal.SIGINT, "before", "compute.disks.aggregatedList"),
        (signal.SIGINT, "after", "compute.regions.list"),
        (signal.SIGINT, "before", BULK_INSERT),
        (signal.SIGTERM, "after", BULK_INSERT),
        (signal.SIGINT, "after", "compute.firewalls.insert"),
        (signal.SIGHUP, "before", WAIT),
        (signal.SIGINT, "after", READ),
    ],
)
def test_an_up_that_is_interrupted_leaves_nothing(
    records: RecordsCloud, project: Project, by: int, when: str, method: str
) -> None:
    ended = killed_at(records, project, when, method, 0, "up", by=by).expect(130)
    assert records.left() == []
    assert records.there() == []
    assert "Traceback" not in ended.err
    made = method not in ("compute.disks.aggregatedList", "compute.regions.list")
    assert ("was interrupted; everything that it had made is deleted" in ended.err) == made
    assert project.hvdcloud("down", "--json").json["result"]["nothing_to_do"]


# --- down -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", kill_points(DOWN))
def test_down_finishes_what_a_killed_down_began(records: RecordsCloud, project: Project, number: int) -> None:
    make(project)
    killed_at(records, project, "after", "*", number, "down")
    records.list_shows_the_truth(project)
    project.hvdcloud("down")
    assert records.there() == []


@pytest.mark.parametrize("method", DELETING)
def test_ctrl_c_does_not_stop_a_down_that_deletes(records: RecordsCloud, project: Project, method: str) -> None:
    make(project)
    killed_at(records, project, "before", method, 0, "down", by=signal.SIGINT).expect(0)
    assert records.left() == []
