"""Money as a person sees it: what `up` and `launch` ask, what `status`, `list` and `down` say, and that max_cost holds.

The prices are those of tests/support/price_table.py: two nodes cost 2 x 0.46 = $0.92/h in us-central1 and
2 x 0.61 = $1.22/h in us-west1. For limits.max_run_duration of 2 h, the worst case
is half a minute more, and a minute for the start: 0.92 x 7290 / 3600 = $1.86 and 1.22 x 7290 / 3600 = $2.47.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.lifecycle.up import MAKING_SECONDS
from tests.support.gce_records import ZONES, RecordsCloud, came_up, make
from tests.support.harness import Project, until
from tests.support.price_table import write_prices

pytestmark = pytest.mark.engine
CHANGES = {"POST", "DELETE"}


@pytest.fixture
def empty(records: RecordsCloud) -> Iterator[RecordsCloud]:
    """The cloud without anything in it, before and after."""
    yield records
    left = records.left()
    records.cloud.emulator.reset()
    assert left == []


def project_of(
    records: RecordsCloud, root: Path, name: str = "t-gce", *, zones: Sequence[str] = ZONES, **limits: Any
) -> Project:
    """Of two nodes that everybody on the internet could reach."""
    project = records.project(
        root,
        name,
        gce={"zones": list(zones), "ssh": {"source": "198.51.100.7/32"}},
        limits={"max_run_duration": "2h", **limits},
    )
    write_prices(project.state)
    return project


def requested(records: RecordsCloud) -> list[str]:
    """What has been asked for that changes anything; IAM's questions are only POSTs in form."""
    entries = records.cloud.emulator.log.entries()
    return [entry.method for entry in entries if entry.http in CHANGES and entry.method.startswith("compute.")]


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
