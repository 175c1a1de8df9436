"""A Spot VM of an elastic run that is taken away while the laptop is dead is replaced by the head."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import elastic_run
from tests.support.cloud import HEAD_ACCOUNT, Cloud, Earlier, running_cloud
from tests.support.cloud_views import BOOT_SECONDS, left, zone_of
from tests.support.elastic_run import Training
from tests.support.harness import Project, Screen, until

pytestmark = pytest.mark.engine

NAME = "t-h-new"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, earlier: Earlier, image: str) -> Iterator[Cloud]:
    """The head may make nodes, and no other node may; nothing is left when all tests are over."""
    with running_cloud(tmp_path_factory.mktemp("cloud"), earlier=earlier) as cloud:
        access = cloud.emulator.access
        # What terraform's self_replace allows (terraform/identity.tf).
        for verb in ("delete", "get", "getGuestAttributes"):
            access.allow(
                HEAD_ACCOUNT, f"compute.instances.{verb}", resource=f"projects/test-project/zones/*/instances/{NAME}-*"
            )
        access.allow(HEAD_ACCOUNT, "compute.instances.create", "compute.zoneOperations.get")
        yield cloud
        assert cloud.left() == []


def newest_run(project: Project) -> dict[str, Any]:
    run: dict[str, Any] = project.hvdcloud("status", "--json").json["result"]["runs"][-1]
    return run


def made(cloud: Cloud, vm: str) -> str | None:
    """When a VM was made; None: it is not there."""
    found = [each for each in cloud.emulator.state.instances() if each["name"] == vm]
    return str(found[0]["creationTimestamp"]) if found else None


def makers(cloud: Cloud) -> list[str]:
    """Who has asked for VMs, in order."""
    operations = sorted(cloud.emulator.state.all_operations(), key=lambda each: str(each["insertTime"]))
    return [str(each["user"]) for each in operations if each["operationType"] == "bulkInsert"]


def test_a_vm_that_is_taken_away_while_the_laptop_is_dead_is_replaced_by_the_head(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(
        tmp_path,
        NAME,
        gce={"spot": "workers", "head_service_account": HEAD_ACCOUNT, "self_delete": False},
        run={
            "command": "python train.py --epochs 1000 --pause 0.1",
            "elastic": {"min": 1, "max": 2},
            "env": {"OMP_NUM_THREADS": "1"},
        },
    )
    project.write("train.py", elastic_run.JOB.read_text())
    project.hvdcloud("push")
    project.hvdcloud("up")
    node = f"{NAME}-1"
    with project.started("run") as process:
        screen = Screen(process)
        Training(lambda: screen.text).step_in_world_of(2, seconds=BOOT_SECONDS)
        process.kill()
        process.wait()
    before = made(cloud, node)
    cloud.emulator.preempt(zone_of(cloud, node), node)
    until(lambda: made(cloud, node) not in (None, before), seconds=BOOT_SECONDS, what="another VM")
    assert makers(cloud)[-1] == HEAD_ACCOUNT
    assert makers(cloud).count(HEAD_ACCOUNT) == 1

    # The laptop is back, and knows the new node by what it sent to the provider.
    until(lambda: newest_run(project)["world"] == 2, seconds=BOOT_SECONDS, what="the world to be whole again")
    assert project.hvdcloud("status", "--json").json["result"]["whole"]
    assert project.hvdcloud("ssh", "1", "--", "hostname").out == f"{node}\n"
    log = project.hvdcloud("logs").out
    assert f"node {node} is gone; no client follows the run: the head replaces it" in log, log[-4000:]
    assert f"node {node} is back" in log
    project.hvdcloud("ssh", "0", "--", "touch", "/tmp/enough")
    assert "succeeded" in project.hvdcloud("logs", "-f").out
    result = elastic_run.pulled_result(project)
    elastic_run.each_sample_once(result["history"], epochs=result["epochs"])
    assert result["world"] == 2
    # Without --force: it asks the new node, too, whether it has uploaded everything.
    project.hvdcloud("down")
    assert left(cloud, project) == []
