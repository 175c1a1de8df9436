"""Compute Engine with flex-start, as a person sees it: `up` that waits, Ctrl-C, `kill -9`, and `down` elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.gce_records import A, B, RecordsCloud, another_laptop, came_up
from tests.support.harness import Ended, Project, Screen
from tests.support.impatient import NOTHING_LATE, QUICK

pytestmark = pytest.mark.engine

REQUEST = "compute.instanceGroupManagerResizeRequests.insert"
WAITS = f"{A}: flex-start request ACCEPTED, waits for 0 min"


@pytest.fixture
def project(tmp_path: Path, records: RecordsCloud) -> Iterator[Project]:
    """Two nodes with an L4 each, for which there is no room yet, on a cloud that is empty before and after."""
    emulator = records.cloud.emulator
    emulator.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 16, region="us-central1")
    records.fail({"queue": True}, method=REQUEST)
    gce = {"zones": [A, B], "machine_type": "g2-standard-8", "gpu": None, "provisioning": "flex-start"}
    yield replace(records.project(tmp_path, gce=gce), first=QUICK)
    left = records.left()
    emulator.reset()
    assert left == []


def test_up_waits_until_there_is_room_and_list_shows_the_request(records: RecordsCloud, project: Project) -> None:
    with project.started("up") as process:
        screen = Screen(process)
        screen.wait_for(WAITS)
        [cluster] = another_laptop(project).hvdcloud("list", "--json").json["result"]
        assert any(other.startswith(f"request {A}/hvdcloud-t-gce-") for other in cluster["other_objects"])
        records.cloud.emulator.grant()
        code = screen.end()
    came_up(Ended(code, "", screen.text))


def test_ctrl_c_while_it_waits_leaves_nothing(records: RecordsCloud, project: Project) -> None:
    with project.started("up") as process:
        screen = Screen(process)
        screen.wait_for(WAITS)
        process.send_signal(signal.SIGINT)
        assert screen.end() == 130
    assert "everything that it had made is deleted" in screen.text
    assert records.left() == []


@pytest.mark.parametrize("granted", [False, True])
def test_down_elsewhere_ends_what_a_killed_up_waits_for(records: RecordsCloud, project: Project, granted: bool) -> None:
    with project.started("up") as process:
        screen = Screen(process)
        screen.wait_for(WAITS)
        process.send_signal(signal.SIGKILL)
        screen.end()
    if granted:
        records.cloud.emulator.grant()
    replace(another_laptop(project), first=NOTHING_LATE).hvdcloud("down", "--force")
    assert records.left() == []
