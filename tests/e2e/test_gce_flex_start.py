"""Compute Engine with flex-start, as a person sees it: `up` that waits, Ctrl-C, `kill -9`, and `down` elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.gce_records import A, B, RecordsCloud, another_laptop, came_up
from tests.support.harness import Ended, Project, Screen
from tests.support.impatient import QUICK

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
