"""`hvdcloud` on Compute Engine: VMs that really boot, pull, train together and go, in front of the emulated API."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.storage.checksum import crc32c_of_bytes, crc32c_of_file
from tests.standins.compute.machines import LABEL
from tests.support.cloud import NODES_ACCOUNT, Cloud, Earlier, running_cloud
from tests.support.cloud_views import left
from tests.support.harness import Ended, Project

pytestmark = pytest.mark.engine

# Reduces over both VMs, prints its surroundings and leaves known checkpoints.
PROBE = """
import json, os, random, socket
import horovod.torch as hvd
import torch

hvd.init()
total = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum).item()
print(json.dumps({"rank": hvd.rank(), "host": socket.gethostname(), "sum": total, "env": dict(os.environ)}), flush=True)
if hvd.rank() == 0:
    for number in range(3):
        path = os.path.join(os.environ["HVDCLOUD_CHECKPOINT_DIR"], f"epoch-{number}.pt")
        with open(path + ".tmp", "wb") as file:
            file.write(random.Random(number).randbytes(2_000_000 + number))
        os.replace(path + ".tmp", path)
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, engine: Any, earlier: Earlier, image: str) -> Iterator[Cloud]:
    """Afterwards neither the project nor the engine has anything left."""
    with running_cloud(tmp_path_factory.mktemp("cloud"), earlier=earlier) as cloud:
        yield cloud
        assert cloud.left() == []
    assert cloud.machines
    filters = {"label": f"{LABEL}={cloud.machines.network}"}
    assert engine.containers.list(ignore_removed=True, all=True, filters=filters) == []
    assert engine.networks.list(filters=filters) == []
    assert engine.volumes.list(filters=filters) == []


@pytest.fixture(autouse=True)
def _no_faults_stay(cloud: Cloud) -> Iterator[None]:
    yield
    cloud.emulator.faults.clear()


def assert_in_order(text: str, *patterns: str) -> None:
    """Lines match these, one after the other."""
    lines = iter(text.splitlines())
    for pattern in patterns:
        assert any(re.fullmatch(pattern, line) for line in lines), f"{pattern!r} is not there, or not in order:\n{text}"


# --- launch -----------------------------------------------------------------------------------------------------------


def test_launch_trains_on_two_vms_and_leaves_nothing_but_the_checkpoints(cloud: Cloud, tmp_path: Path) -> None:
    project = cloud.project(tmp_path, "t-gce-launch", gce={"provisioning": "spot", "zones": ["us-central1-b"]})
    project.write("train.py", PROBE)
    project.environ["TOKEN"] = "hunter2-gce"
    began = len(cloud.emulator.log.entries())
    assert cloud.machines
    # A bad network costs time and no checkpoint.
    cloud.storage.fault(path="/upload/", action={"status": 503}, times=2)
    cloud.storage.fault(path="/upload/", action={"cut": "request", "after": 10_000}, times=2, skip=1)
    cloud.storage.fault(path="/upload/", action={"cut": "effect"}, times=2, skip=3)
    cloud.storage.fault(path="alt=media", action={"cut": "response", "after": 100_000}, times=2, skip=3)
    # The other one has the layers: to unpack them takes a core a quarter of a minute.
    with cloud.machines.empty_disks("t-gce-launch-1"):
        ended = project.hvdcloud("launch")
    assert left(cloud, project) == []
    assert [fault["hits"] for fault in cloud.storage.faults.plain()] == [2] * 4, "all of it happened"
    cloud.storage.faults.clear()

    # A step that is over before the laptop asks is not seen.
    for node, steps in {
        "t-gce-launch-0": ("ready",),
        "t-gce-launch-1": (r"pulling(, driver)?", "ready"),
    }.items():
        assert_in_order(ended.err, *(f"{node}: {step}" for step in steps), "VM us-central1-b/.*: deleted")
    assert re.search(r"^\$\d\.\d\d/h, at worst \$\d+\.\d\d$", ended.err, flags=re.MULTILINE)
    *_, gone, cost, last = ended.out.splitlines()
    # Or of their disks too, where one is listed after its VM.
    assert re.match(r"t-gce-launch is gone: [4-6] objects deleted in ", gone)
    assert re.fullmatch(r"cost: (\$0\.\d\d|less than \$0\.01) for 2 nodes, .* at \$0\.\d\d/h", cost)
    report = project.hvdcloud("report", "--json").json["result"]
    assert [part["name"] for part in report["phases"]] == ["boot", "training", "upload", "teardown"]
    assert re.match(r"✓ .* · (\$0\.\d\d|less than \$0\.01) · 3 checkpoints → ", last)
    (folder,) = (path for path in (project.folder / "checkpoints").iterdir() if path.is_dir())
    for number in range(3):
        data = random.Random(number).randbytes(2_000_000 + number)
        assert crc32c_of_file(folder / f"epoch-{number}.pt") == (len(data), crc32c_of_bytes(data))
    assert_ranks_saw_each_other_and_no_secret(ended)
    assert_requested(cloud, began)
    # The nodes came to the bucket with the service account of their VM and nothing else.
    tokens = [token for token in cloud.storage.tokens if token]
    assert {cloud.emulator.keys.check(f"Bearer {token}") for token in tokens} == {NODES_ACCOUNT}


def assert_ranks_saw_each_other_and_no_secret(ended: Ended) -> None:
    facts = [
        json.loads(line.partition("] ")[2])
        for line in ended.out.splitlines()
        if line.startswith("[") and '{"rank"' in line
    ]
    assert {fact["rank"]: fact["host"] for fact in facts} == {0: "t-gce-launch-0", 1: "t-gce-launch-1"}
    for fact in facts:
        assert fact["sum"] == 3.0
        assert fact["env"]["NCCL_SOCKET_IFNAME"] == fact["env"]["HOROVOD_GLOO_IFACE"] == "eth0"
        assert {name for name in fact["env"] if name.startswith("HVDCLOUD_")} == {
            "HVDCLOUD_RUN",
            "HVDCLOUD_CHECKPOINT_DIR",
            "HVDCLOUD_WAITS",
        }
        assert not any(name.startswith(("GOOGLE_", "DOCKER_", "TOKEN")) for name in fact["env"])
        assert not any(secret in str(fact["env"]) for secret in ("hunter2", "ya29.", "PRIVATE KEY"))


def assert_requested(cloud: Cloud, began: int) -> None:
    """The one request that made the VMs says all that bounds them."""
    entries = cloud.emulator.log.entries()[began:]
    (request,) = (entry.body for entry in entries if entry.method == "compute.instances.bulkInsert")
    assert (request["count"], request["minCount"]) == ("2", "2")
    vm = request["instanceProperties"]
    assert vm["scheduling"] == {
        "provisioningModel": "SPOT",
        "instanceTerminationAction": "DELETE",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "maxRunDuration": {"seconds": "43200"},
    }
    (interface,) = vm["networkInterfaces"]
    assert interface["nicType"] == "GVNIC"
    assert "accessConfigs" not in interface, "the caller's address is a private one"
    (disk,) = vm["disks"]
    assert disk["autoDelete"]
    assert disk["initializeParams"]["labels"] == vm["labels"]
    assert vm["labels"]["managed-by"] == "hvdcloud"
    assert vm["labels"]["hvdcloud-cluster"] == "t-gce-launch"
    assert [account["email"] for account in vm["serviceAccounts"]] == [NODES_ACCOUNT]
    assert set(vm["shieldedInstanceConfig"].values()) == {True}
    metadata = {item["key"]: item["value"] for item in vm["metadata"]["items"]}
    assert re.fullmatch(rf"{cloud.registry}/hvdcloud/digits@sha256:[0-9a-f]{{64}}", metadata["hvdcloud-image"])
    assert metadata["hvdcloud-image"] in metadata["startup-script"]
    assert metadata["block-project-ssh-keys"] == metadata["enable-guest-attributes"] == "TRUE"
    assert not any(secret in json.dumps(request) for secret in ("PRIVATE KEY", "ya29.", "hunter2"))
    rules = {
        entry.body["name"].rpartition("-")[2]: entry.body for entry in entries if "firewalls.insert" in entry.method
    }
    assert cloud.machines
    assert rules["ssh"]["sourceRanges"] == [f"{cloud.machines.gateway}/32"]
    assert rules["ssh"]["allowed"] == [{"IPProtocol": "tcp", "ports": ["2222"]}]
    assert rules["mesh"]["sourceTags"] == rules["mesh"]["targetTags"] == rules["ssh"]["targetTags"]


# --- one cluster for many commands ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A cluster of two VMs."""
    project = cloud.project(tmp_path_factory.mktemp("cluster"), "t-gce", gce={"provisioning": "spot"})
    project.hvdcloud("push")
    project.hvdcloud("up")
    yield project
    project.hvdcloud("down", "--force")
    assert left(cloud, project) == []


def test_what_there_is_and_what_it_costs(cluster: Project) -> None:
    (found,) = cluster.hvdcloud("list", "--json").json["result"]
    assert found["dollars_per_hour"] > 0.1
    listed = cluster.hvdcloud("list").out
    assert re.search(rf"^t-gce +2/2 +whole +{found['dollars_per_hour']:.2f} ", listed, flags=re.MULTILINE)
    status = cluster.hvdcloud("status", "--json").json["result"]
    # Since the VMs were made; the cluster's age counts from the first question to the cloud.
    at_most = found["dollars_per_hour"] * status["age_seconds"] / 3600
    assert 0.5 * at_most < status["dollars_so_far"] <= max(at_most, found["dollars_per_hour"] / 60)
    assert status["dollars_so_far"] < status["cluster"]["worst_case_dollars"] < 12.1 * found["dollars_per_hour"]
    assert [node["state"] for node in status["cluster"]["nodes"]] == ["running", "running"]


def test_ssh_reaches_every_vm_and_they_reach_each_other(cluster: Project) -> None:
    assert cluster.hvdcloud("ssh", "1", "--", "hostname").out == "t-gce-1\n"
    assert cluster.hvdcloud("ssh", "0", "--", "ssh", "t-gce-1", "hostname").out == "t-gce-1\n"


# --- Identity-Aware Proxy ---------------------------------------------------------------------------------------------

# The tunnel's far end is in Google's network; here it is in the machine itself, which sees a connection from within.
GCLOUD = r"""#!/bin/bash
set -eu
[[ "$*" != "auth print-access-token" ]] || exec cat "$(dirname "$0")/token"
echo "$*" >>"$(dirname "$0")/calls"
[[ "$1 $2 $4 $5 $6" == "compute start-iap-tunnel 2222 --listen-on-stdin --project=test-project" ]]
[[ $7 == --zone=us-central1-a ]]
vm=$(docker ps --quiet --filter label=hvdcloud-emulator | xargs docker inspect --format '{{.Config.Hostname}} {{.Id}}' |
    awk -v name="$3" '$1 == name { print $2 }')
exec docker exec --interactive "$vm" bash -c 'exec 3<>/dev/tcp/127.0.0.1/2222; cat <&0 >&3 & exec cat <&3'
"""


@pytest.mark.nightly
def test_through_iap_the_vms_need_no_external_address_and_only_iap_may_come_in(cloud: Cloud, tmp_path: Path) -> None:
    gcloud = tmp_path / "bin" / "gcloud"
    gcloud.parent.mkdir()
    gcloud.write_text(GCLOUD)
    gcloud.chmod(0o755)
    keys = cloud.emulator.keys
    gcloud.with_name("token").write_text(keys.issue(keys.email)[0])
    settings = {"ssh": {"source": "iap"}, "zones": ["us-central1-a"]}
    project = cloud.project(tmp_path / "p", "t-gce-iap", nodes=2, gce=settings)
    project.environ["PATH"] = f"{gcloud.parent}:{os.environ['PATH']}"
    project.hvdcloud("push")
    project.hvdcloud("up")
    rules, found = cloud.emulator.state.all_firewalls(), cloud.emulator.state.instances()
    (rule,) = (rule for rule in rules if "-t-gce-iap-" in rule["name"] and rule["name"].endswith("-ssh"))
    assert rule["sourceRanges"] == ["35.235.240.0/20"]
    ours = [vm for vm in found if vm["name"].startswith("t-gce-iap-")]
    assert ["accessConfigs" in vm["networkInterfaces"][0] for vm in ours] == [False, False]
    assert "through IAP" in project.hvdcloud("status").out
    assert project.hvdcloud("ssh", "1", "--", "hostname").out == "t-gce-iap-1\n"
    project.environ["HVDCLOUD_RUN__LAUNCHER"] = "torchrun"
    ran = project.hvdcloud("run", "--", "hostname").out
    assert {"[0] t-gce-iap-0", "[1] t-gce-iap-1"} <= set(ran.splitlines())
    project.hvdcloud("down")
    assert left(cloud, project) == []
    calls = (gcloud.parent / "calls").read_text().splitlines()
    assert {call.split()[2] for call in calls} == {"t-gce-iap-0", "t-gce-iap-1"}


@pytest.mark.nightly
def test_a_port_that_cannot_be_reached_ends_up_before_the_image_is_there(cloud: Cloud, tmp_path: Path) -> None:
    settings = {"ssh": {"source": "198.51.100.7/32"}, "zones": ["us-central1-a"]}
    project = cloud.project(tmp_path, "t-gce-blocked", gce=settings)
    project.hvdcloud("push")
    ended = project.hvdcloud("up", expect=5)
    assert "cannot be reached from here: timed out; Google's firewall lets in 198.51.100.7/32" in ended.err
    assert "write gce.ssh.source: iap" in ended.err
    assert "t-gce-blocked-0  ready" not in ended.out + ended.err
    assert left(cloud, project) == []
