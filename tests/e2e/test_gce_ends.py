"""VMs that delete themselves while the laptop is off: after a run, or when they are idle."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cloud import NODES_ACCOUNT, Cloud
from tests.support.cloud_views import in_bucket, left, zone_of
from tests.support.harness import Project, Screen, until

pytestmark = pytest.mark.engine

WRITES = 'echo started; sleep 2; echo weights > "$HVDCLOUD_CHECKPOINT_DIR/rank-$HOROVOD_RANK.pt"; echo written'


@pytest.fixture(scope="module")
def cloud(cloud: Cloud) -> Cloud:
    """Nodes may delete themselves."""
    allowed = "projects/test-project/zones/*/instances/t-ends-*"
    cloud.emulator.access.allow(NODES_ACCOUNT, "compute.instances.delete", resource=allowed)
    return cloud


def machines_left(cloud: Cloud, project: Project) -> list[str]:
    """What still costs money: all but firewall rules."""
    return [link for link in left(cloud, project) if "/firewalls/" not in link]


def deletions(cloud: Cloud, project: Project) -> list[tuple[str, str]]:
    """The instances whose deletion was asked for and granted, and by whom."""
    operations = (each for each in cloud.emulator.state.all_operations() if each["operationType"] == "delete")
    found = (
        (each["targetLink"].rpartition("/")[2], each["user"])
        for each in operations
        if "/instances/" in each["targetLink"]
    )
    return sorted(each for each in found if each[0].startswith(project.name))


def test_after_a_launch_whose_laptop_died_nothing_costs_money_and_nothing_is_lost(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(tmp_path, "t-ends-launch")
    # Answers that are lost or refused for a moment change nothing.
    faults = cloud.emulator.faults
    faults.add({"status": 503}, method="compute.instances.delete", times=2)
    faults.add({"reset": "after"}, method="compute.instances.delete")
    with project.started("launch", "--", "sh", "-c", WRITES) as process:
        # With the rank before it: a notice about the GPU's end of life has the word too.
        Screen(process).wait_for("] started", times=2)
        process.kill()
        process.wait()
    until(lambda: not machines_left(cloud, project), what="the VMs and their disks to be gone")
    assert [rule["hits"] for rule in faults.plain()["rules"]] == [2, 1]
    # The one whose answer was lost has asked again.
    assert sorted({*deletions(cloud, project)}) == [(f"t-ends-launch-{node}", NODES_ACCOUNT) for node in (0, 1)]
    assert in_bucket(cloud, project) == {"rank-0.pt", "rank-1.pt"}

    # Everything that is to be known can be learned from any laptop.
    elsewhere = replace(project, state=tmp_path / "another-laptop")
    listed = elsewhere.hvdcloud("list").out
    assert re.search(r"^t-ends-launch +0/2 ", listed, flags=re.MULTILINE), listed
    for laptop in (project, elsewhere):
        logs = laptop.hvdcloud("logs").out
        assert logs.count("written\n") == 2
        assert logs.splitlines()[-1] == (
            "[hvdcloud] switching off the nodes: the run has ended and its checkpoints are in the bucket"
        )
        assert "succeeded" in laptop.hvdcloud("logs", "-f").out
        assert "succeeded" in laptop.hvdcloud("status").out
    assert "all nodes of cluster t-ends-launch are gone" in project.hvdcloud("run", expect=5).err
    ended = project.hvdcloud("down")
    assert "hvdcloud pull" in ended.err, "what this disk has not, is said"
    assert left(cloud, project) == []
    (run,) = elsewhere.hvdcloud("pull", "--json").json["result"]["runs"]
    assert (run["files"], run["complete"]) == (2, True)
    assert "written" in elsewhere.hvdcloud("logs").out, "also after `down`"


def test_a_vm_that_nobody_uses_deletes_itself_and_says_why(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(tmp_path, "t-ends-idle", nodes=1, limits={"idle": 60})
    project.hvdcloud("push")
    project.hvdcloud("up")
    said = re.compile(r"\bhvdcloud: idle for \d+ (?:s|min): no run, no SSH session; switching off$", re.MULTILINE)
    until(lambda: said.search(serial(cloud, "t-ends-idle-0")), what="the VM to say why it ends")
    until(lambda: not machines_left(cloud, project), what="the VM and its disk to be gone")
    assert deletions(cloud, project) == [("t-ends-idle-0", NODES_ACCOUNT)]
    project.hvdcloud("down")
    assert left(cloud, project) == []


def serial(cloud: Cloud, vm: str) -> str:
    """What a VM has written to its serial port; empty once it is gone."""
    try:
        zone = zone_of(cloud, vm)
    except ValueError:
        return ""
    return cloud.emulator.state.vm(zone, vm).serial.decode(errors="replace")
