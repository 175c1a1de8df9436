"""A Spot VM that is taken away: 30 s after its notice it is gone, and what it had written is in the bucket; with
`run.retry` the run continues on others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import jobs
from tests.support.cloud import Cloud
from tests.support.cloud_views import in_bucket, left, vms, zone_of
from tests.support.harness import Project, Screen, until
from tests.support.project_runs import pulled

pytestmark = pytest.mark.engine


def written_on(project: Project, node: int) -> set[str]:
    """The whole checkpoints on a node's disk."""
    out = project.hvdcloud("ssh", str(node), "--", "ls", "-R", "/var/lib/hvdcloud/checkpoints").out
    return set(re.findall(r"^\S+\.pt$", out, flags=re.MULTILINE))


def test_a_preempted_vm_ends_the_run_and_takes_no_whole_file_with_it(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(
        tmp_path,
        "t-c-preempted",
        gce={"provisioning": "spot"},
        checkpoints={"bucket": "gs://bucket/runs", "keep_every": 600.0},
    )
    project.write("train.py", jobs.ENDLESS_ALONE)
    project.hvdcloud("push")
    project.hvdcloud("up")
    node = "t-c-preempted-1"
    zone = zone_of(cloud, node)
    with project.started("run", "--", "python", "train.py", "0", "1") as process:
        screen = Screen(process)
        screen.wait_for("trains\n", times=2)
        until(lambda: len(written_on(project, 1)) >= 3, what="checkpoints of the VM")
        written = written_on(project, 1)
        assert not written <= in_bucket(cloud, project), "nothing but its end makes the VM upload"
        vm = cloud.emulator.state.vm(zone, node)
        cloud.emulator.preempt(zone, node)
        screen.wait_for(f"node {node} is being preempted: its checkpoints are being uploaded")
        screen.wait_for("after the notice)")
        screen.end()
    assert process.returncode == 7, screen.text
    assert re.search(rf"node {node}: all \d+ files are in the bucket \(\d+\.\d s after the notice\)", screen.text)
    assert f"node {node} ended its part of the run: it is being preempted" in screen.text
    assert written <= in_bucket(cloud, project)
    # Its disk too; the cluster's own id, which is in names of firewall rules, may begin with a 1.
    until(
        lambda: not any(link.endswith(f"/{node}") for link in left(cloud, project)),
        what="the VM to be gone",
    )
    # What a person sees in the Cloud Console, whichever of the ways was the first.
    said = vm.serial.decode(errors="replace")
    assert re.search(r"hvdcloud: the VM is being preempted: (Docker is ending|its container (is|has) ended)", said), (
        said[-2000:]
    )
    assert re.search(r"hvdcloud: the container ended \d+ s after the VM's end began", said), said[-2000:]
    assert "shutdown-script exit status 0" in said, said[-2000:]
    assert "init: power down" in said, "it was off before the half minute was over"

    # The other one stays until its checkpoints are on this disk.
    head = {"t-c-preempted-0": "RUNNING"}
    assert vms(cloud, project) == head
    assert "t-c-preempted-0 running" in project.hvdcloud("run", expect=5).err
    assert "NOT WHOLE" in project.hvdcloud("status").out
    assert "hvdcloud pull" in project.hvdcloud("down", expect=9).err
    assert vms(cloud, project) == head
    assert written <= pulled(project)
    project.hvdcloud("down")
    assert left(cloud, project) == []


@pytest.mark.nightly
@pytest.mark.parametrize(("lost", "elastic"), [(1, None), (0, {"min": 1, "max": 2})])
def test_a_preempted_run_continues_on_other_vms_in_another_zone(
    cloud: Cloud, tmp_path: Path, lost: int, elastic: dict[str, int] | None
) -> None:
    project = cloud.project(
        tmp_path,
        f"t-c-again-{lost}",
        gce={"provisioning": "spot"},
        run={"command": "python train.py 1", "retry": 1, "elastic": elastic},
        checkpoints={"bucket": "gs://bucket/runs", "keep_every": 600.0},
        limits={"max_cost": 5.0, "max_run_duration": "2h"},
    )
    project.write("train.py", jobs.ATTEMPTS)
    node = f"{project.name}-{lost}"
    with project.started("launch") as process:
        screen = Screen(process)
        screen.wait_for("is in attempt 1", times=2)
        zone = zone_of(cloud, node)
        cloud.emulator.faults.add({"stockout": {}}, method="compute.instances.bulkInsert", zone=zone)
        cloud.emulator.preempt(zone, node)
        screen.wait_for("attempt 1 was lost after")
        screen.wait_for("is in attempt 2", times=2)
        screen.end()
    assert process.returncode == 0, screen.text
    assert f"{zone}: no capacity" in screen.text
    said = screen.text[screen.text.index("attempt 1 was lost after") :].splitlines()[0]
    assert re.search(r"attempt 2 of at most 2 continues run \S+; \$4[.]\d\d and 1 h", said)
    assert " · 2 attempts · " in screen.text.splitlines()[-1]
    assert "of it for earlier attempts" in screen.text
    found = {path.name for path in (project.folder / "checkpoints").rglob("*.pt")}
    assert found == {f"rank-{rank}-attempt-{attempt}.pt" for rank in (0, 1) for attempt in (1, 2)}
    assert left(cloud, project) == []
