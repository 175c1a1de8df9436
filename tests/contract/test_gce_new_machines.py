"""Machines that no price is known of, from plan to `down`, as a user sees them: `?`, and never nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import LimitsConfig
from hvdcloud.errors import ExitCode, UsageError
from tests.standins.compute import Emulator
from tests.standins.storage import running_server
from tests.support.gce_bench import Bench
from tests.support.harness import Project
from tests.support.impatient import IMAGE_IS_THERE

ZONE = "us-central1-b"
A4 = {"machine_type": "a4-highgpu-8g", "gpu": None, "zones": [ZONE], "provisioning": "spot"}


@pytest.fixture
def project(project: Project, tmp_path: Path) -> Iterator[Project]:
    """Of two A4."""
    with running_server(tmp_path / "storage") as storage:
        project.first = IMAGE_IS_THERE
        project.environ["STORAGE_EMULATOR_HOST"] = storage.url
        configure(project)
        yield project


def configure(project: Project, **more: Any) -> None:
    gce = {"project": "test-project", "service_account": "default", "ssh": {"source": "198.51.100.7/32"}, **A4}
    checkpoints = {"bucket": "gs://bucket/runs"}
    project.configure(provider="gce", nodes=2, checkpoints=checkpoints, gce=gce, **more)


def test_two_nodes_are_made_listed_and_deleted_and_no_sum_is_made_up(emulator: Emulator, project: Project) -> None:
    planned = project.hvdcloud("up", "--dry-run").out
    assert "cluster digits: 2 nodes on Compute Engine, a4-highgpu-8g with 8 nvidia-b200, Spot" in planned
    assert "note: the price table does not know a4-highgpu-8g with 8 nvidia-b200, Spot; hvdcloud offers" in planned
    assert planned.endswith("price not known; nothing was changed\n")
    assert {entry.http for entry in emulator.log.entries()} == {"GET"}
    bench = Bench(emulator)
    bench.create(spec := bench.spec(name="digits"), bench.another(**A4))
    for vm in emulator.state.instances():
        assert vm["resourcePolicies"]
        assert vm["scheduling"]["instanceTerminationAction"] == "DELETE"
    shown = project.hvdcloud("list").out
    assert shown.splitlines()[1].split()[:6] == ["digits", "2/2", "whole", "?", "?", "?"]
    assert "digits: the price table does not know a4-highgpu-8g" in shown
    said = project.hvdcloud("status").out
    assert "cost so far: ?, at worst ? (deleted by Compute Engine at " in said
    found = project.hvdcloud("status", "--json").json["result"]
    assert found["dollars_so_far"] is found["cluster"]["dollars_per_hour"] is None
    # Others with a price are not enough for a sum either.
    smaller = bench.another(zones=[ZONE], limits=LimitsConfig(max_cost=500))
    with pytest.raises(UsageError, match="cannot be kept: the price table does not know a4-highgpu-8g"):
        smaller.plan_growth(replace(spec, nodes=3), [2])
    plan = bench.another(zones=[ZONE]).plan_growth(replace(spec, nodes=3), [2])
    assert plan.dollars_per_hour is plan.worst_case_dollars is None
    assert "cost" not in project.hvdcloud("down", "--force").out


def test_what_may_cost_any_amount_is_made_only_by_who_says_so_and_not_under_max_cost(project: Project) -> None:
    asked = project.hvdcloud("up", expect=ExitCode.USAGE).err
    assert "cluster digits may cost any amount, its price is not known: more than limits.ask_above of $50.00" in asked
    configure(project, limits={"max_cost": 500})
    for command in (("up", "--dry-run"), ("up", "--yes")):
        refused = project.hvdcloud(*command, expect=ExitCode.USAGE).err
        assert "limits.max_cost cannot be kept: the price table does not know a4-highgpu-8g with 8 nvidia" in refused
        assert "hvdcloud offers --refresh may get its price; or leave limits.max_cost out" in refused


@pytest.mark.parametrize(
    ("machine_type", "zone"),
    [("a3-megagpu-8g", "us-central1-a"), ("a3-ultragpu-8g", "us-west1-c"), ("g4-standard-96", ZONE)],
)
def test_the_others_are_made_where_they_are_and_no_quota_of_theirs_is_asked_for(
    emulator: Emulator, machine_type: str, zone: str
) -> None:
    bench = Bench(emulator)
    spec, provider = bench.spec(), bench.another(**{**A4, "machine_type": machine_type, "zones": [zone]})
    assert {node.id.partition("/")[0] for node in bench.create(spec, provider)} == {zone}
    assert provider.destroy(spec.name) == []
