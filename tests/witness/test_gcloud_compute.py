"""gcloud against the stand-in of Compute Engine: what Google's own program sends is taken, and its answers are read."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from hvdcloud.cluster.model import NodeState
from tests.standins.compute import BootDelays, Delays, Emulator, Records
from tests.support.gce_bench import A, Bench
from tests.support.gcloud import Gcloud

FAST = Delays(start=0.005, create=0.02, delete=0.02, other=0.01)
READY = BootDelays(driver=0.01, pulling=0.01, pulled=0.01, starting=0.01, ready=0.01)


@pytest.fixture(scope="module")
def shared() -> Iterator[Emulator]:
    with Emulator(delays=FAST, backing=Records(READY)) as emulator:
        yield emulator


@pytest.fixture(scope="module")
def gcloud(shared: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    token, _ = shared.keys.issue(shared.keys.email)
    folder = tmp_path_factory.mktemp("gcloud")
    return Gcloud(folder, token=token, project="test-project", compute=f"{shared.url}/compute/v1/")


@pytest.fixture
def bench(shared: Emulator) -> Iterator[Bench]:
    shared.reset()
    yield (bench := Bench(shared))
    assert bench.left == []


def names(found: list[dict[str, Any]]) -> list[str]:
    return [one["name"] for one in found]


def test_firewall_rules_are_made_listed_and_deleted(gcloud: Gcloud, bench: Bench) -> None:
    for name, sources in (("digits-ssh", "--source-ranges=198.51.100.7/32"), ("digits-mesh", "--source-tags=digits")):
        rule = ("--network=default", "--allow=tcp:2222", "--target-tags=digits", sources)
        (made,) = gcloud("compute", "firewall-rules", "create", name, *rule)
        assert made["allowed"] == [{"IPProtocol": "tcp", "ports": ["2222"]}]
    assert names(gcloud("compute", "firewall-rules", "list", "--filter=name:digits* AND name~ssh$")) == ["digits-ssh"]
    refused = gcloud.run("compute", "firewall-rules", "create", "digits-ssh", *rule)
    assert "'projects/test-project/global/firewalls/digits-ssh' already exists" in refused.stderr
    gcloud("compute", "firewall-rules", "delete", "digits-ssh", "digits-mesh")


def test_a_cluster_that_gcloud_makes_is_one_to_hvdcloud(gcloud: Gcloud, bench: Bench) -> None:
    spec = bench.spec()
    labels = ",".join(f"{key}={value}" for key, value in spec.labels.items())
    made = gcloud(
        *("compute", "instances", "bulk", "create", f"--zone={A}", "--count=2", "--min-count=2"),
        f"--predefined-names={spec.node_name(0)},{spec.node_name(1)}",
        *("--machine-type=n1-standard-8", "--accelerator=type=nvidia-tesla-t4,count=1"),
        *("--image-family=cos-125-lts", "--image-project=cos-cloud", "--boot-disk-size=100GB"),
        *("--on-host-maintenance=TERMINATE", "--no-restart-on-failure"),
        *("--max-run-duration=1h", "--instance-termination-action=DELETE", f"--labels={labels}"),
    )
    assert made is not None
    cluster = bench.provider.cluster(spec.name)
    assert cluster is not None
    assert [(node.name, node.state) for node in cluster.nodes] == [
        (spec.node_name(index), NodeState.RUNNING) for index in range(2)
    ]
    assert bench.provider.destroy(spec.name) == []
    assert names(gcloud("compute", "disks", "list")) == []


def test_gcloud_sees_what_hvdcloud_made(gcloud: Gcloud, bench: Bench) -> None:
    spec = bench.spec()
    first, second = bench.wait(bench.create(spec))
    assert names(gcloud("compute", "instances", "list", f"--filter=labels.hvdcloud-cluster={spec.name}")) == [
        first.name,
        second.name,
    ]
    here = (first.name, f"--zone={A}")
    shown = gcloud("compute", "instances", "describe", *here)
    assert (shown["status"], shown["labels"]["hvdcloud-id"]) == ("RUNNING", spec.id)
    published = gcloud("compute", "instances", "get-guest-attributes", *here, "--query-path=hvdcloud/")
    assert [one["key"] for one in published] == ["status"]
    assert first.host_key in published[0]["value"]
    output = gcloud("compute", "instances", "get-serial-port-output", *here)["contents"]
    assert output.endswith("hvdcloud: ready\n")
    assert names(gcloud("compute", "disks", "list", "--filter=labels.managed-by=hvdcloud")) == [first.name, second.name]
    (operation,) = gcloud("compute", "operations", "list", "--filter=operationType=bulkInsert AND status=DONE")
    again = gcloud("compute", "operations", "describe", operation["name"], f"--zone={A}")
    assert again["operationGroupId"] == operation["operationGroupId"]
    gcloud("compute", "instances", "delete", first.name, second.name, f"--zone={A}", "--keep-disks=boot")
    gcloud("compute", "disks", "delete", first.name, f"--zone={A}")
    # The other disk has its labels still.
    assert bench.provider.destroy(spec.name) == []


def test_the_commands_for_what_could_not_be_deleted_delete_it(gcloud: Gcloud, bench: Bench, shared: Emulator) -> None:
    spec = bench.spec(nodes=1)
    bench.create(spec)
    shared.access.deny(shared.keys.email, "compute.instances.delete", "compute.firewalls.delete")
    left = bench.provider.destroy(spec.name)
    shared.access.clear()
    assert len(left) == len(bench.left) - 1, "its disk goes with the VM"
    for leftover in left:
        program, *arguments = shlex.split(leftover.delete_with)
        assert program == "gcloud"
        assert gcloud.run(*arguments).returncode == 0
