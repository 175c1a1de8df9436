"""API resources → clusters and nodes."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest

from hvdcloud.cluster.model import NodeState
from hvdcloud.providers.gce.inventory import Inventory
from hvdcloud.providers.gce.names import request_id
from hvdcloud.providers.gce.resource_mapper import ResourceMapper

ROOT = "https://compute.googleapis.com/compute/v1/projects/p"
LABELS = {
    "managed-by": "hvdcloud",
    "hvdcloud-cluster": "digits",
    "hvdcloud-owner": "ada",
    "hvdcloud-id": "0a1b2c",
    "hvdcloud-nodes": "2",
    "hvdcloud-created": "1790000000",
}
DESCRIPTION = " ".join(f"{key}={value}" for key, value in LABELS.items())


def vm(index: int, *, status: str = "RUNNING", zone: str = "us-central1-a", **changes: Any) -> dict[str, Any]:
    name = f"digits-{index}"
    return {
        "name": name,
        "zone": f"{ROOT}/zones/{zone}",
        "status": status,
        "labels": LABELS,
        "machineType": f"{ROOT}/zones/{zone}/machineTypes/n1-standard-8",
        "guestAccelerators": [
            {"acceleratorType": f"{ROOT}/zones/{zone}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
        ],
        "scheduling": {"provisioningModel": "STANDARD"},
        "disks": [{"source": f"{ROOT}/zones/{zone}/disks/{name}", "diskSizeGb": "100"}],
        "networkInterfaces": [
            {"networkIP": f"10.128.0.{index + 2}", "accessConfigs": [{"natIP": f"198.18.0.{index}"}]}
        ],
        "metadata": {
            "items": [
                {"key": "hvdcloud-image", "value": "r/digits@sha256:1"},
                {"key": "hvdcloud-bucket", "value": "gs://b/digits"},
            ]
        },
        **changes,
    }


def disk(name: str, *, zone: str = "us-central1-a") -> dict[str, Any]:
    return {"name": name, "zone": f"{ROOT}/zones/{zone}", "labels": LABELS}


HERE = ResourceMapper(project="p", iap=False)


@pytest.mark.parametrize("url", ["file:///etc", "file:///home/me/.ssh", "/etc", "FILE:///etc", ""])
def test_no_vm_names_a_folder_of_this_machine_as_the_bucket(url: str) -> None:
    planted = vm(0, metadata={"items": [{"key": "hvdcloud-bucket", "value": url}]})
    assert HERE.cluster("digits", Inventory(instances=(planted,))).bucket == ""


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PROVISIONING", NodeState.STARTING),
        ("STAGING", NodeState.STARTING),
        ("RUNNING", NodeState.RUNNING),
        ("STOPPING", NodeState.STOPPED),
        ("TERMINATED", NodeState.STOPPED),
        ("SUSPENDED", NodeState.STOPPED),
        ("REPAIRING", NodeState.STOPPED),
        ("SOMETHING_NEW", NodeState.STOPPED),
    ],
)
def test_states(status: str, state: NodeState) -> None:
    assert HERE.node(vm(0, status=status)).state is state


def test_disks_without_a_vm_and_firewall_rules_are_other_objects() -> None:
    inventory = Inventory(
        instances=(vm(0),),
        disks=(disk("digits-0"), disk("digits-0", zone="us-central1-b"), disk("digits-1")),
        firewalls=({"name": "hvdcloud-digits-0a1b2c-ssh", "description": DESCRIPTION},),
    )
    cluster = HERE.cluster("digits", inventory)
    assert cluster.other_objects == (
        "disk us-central1-a/digits-1",
        "disk us-central1-b/digits-0",
        "firewall hvdcloud-digits-0a1b2c-ssh",
    )
    assert not cluster.whole


def test_a_cluster_of_which_only_an_operation_is_there_yet() -> None:
    operation = {
        "name": "operation-1",
        "operationType": "bulkInsert",
        "zone": f"{ROOT}/zones/us-central1-a",
        "clientOperationId": request_id("digits"),
        "insertTime": "2026-11-20T10:00:00.123-08:00",
    }
    others = {**operation, "clientOperationId": request_id("letters")}
    inventory = Inventory(operations=(operation, others, {**operation, "operationType": "delete"}))
    assert len(inventory.creating("digits")) == 1
    cluster = HERE.cluster("digits", inventory)
    assert cluster.other_objects == ("operation operation-1 (bulkInsert in us-central1-a, under way)",)
    assert cluster.created.isoformat() == "2026-11-20T18:00:00.123000+00:00"


def test_only_places_that_matter_count_as_unseen() -> None:
    inventory = Inventory(unseen=("zone us-central1-a", "zone us-central1-f", "part of project p (why)"))
    assert inventory.within(["us-central1-a"]).unseen == ("zone us-central1-a", "part of project p (why)")
    assert not inventory.sees("us-central1-b")
    assert Inventory(unseen=("zone us-central1-a",)).sees("us-central1-b")
    assert Inventory(unseen=("zone us-central1-a",)).sees("")


def test_one_cluster_of_two_with_one_name() -> None:
    theirs = {**LABELS, "hvdcloud-id": "ffffff"}
    inventory = Inventory(
        instances=(vm(0), vm(0, zone="us-central1-b", labels=theirs)),
        firewalls=({"name": "any", "description": DESCRIPTION},),
    )
    mine = inventory.only("ffffff")
    assert [each["zone"] for each in mine.instances] == [f"{ROOT}/zones/us-central1-b"]
    assert mine.firewalls == ()


def test_a_cluster_whose_request_waits_is_not_whole_and_says_for_how_long() -> None:
    named = {"name": "hvdcloud-digits-0a1b2c", "description": DESCRIPTION}
    there = {**named, "zone": f"{ROOT}/zones/us-central1-a"}
    asked = {**there, "state": "ACCEPTED", "creationTimestamp": "2026-11-28T04:00:00.000-08:00"}
    pending = vm(0, status="PENDING", scheduling={"provisioningModel": "FLEX_START"})
    inventory = Inventory(instances=(pending,), groups=(there,), templates=(named,), requests=(asked,))
    now = datetime(2026, 11, 28, 12, 12, tzinfo=timezone.utc)
    cluster = HERE.cluster("digits", inventory, now=now)
    assert (cluster.id, cluster.expected_nodes, cluster.whole, cluster.is_remnant) == ("0a1b2c", 2, False, False)
    assert cluster.other_objects == (
        "group us-central1-a/hvdcloud-digits-0a1b2c",
        "template hvdcloud-digits-0a1b2c",
        "request us-central1-a/hvdcloud-digits-0a1b2c (flex-start, ACCEPTED, for 12 min)",
    )
    # The wait costs nothing.
    assert (cluster.dollars_per_hour, cluster.dollars_so_far) == (0, 0)
    # Once all VMs are gone, what made them holds nothing.
    over = HERE.cluster("digits", Inventory(groups=(there,), requests=({**asked, "state": "SUCCEEDED"},)))
    assert over.is_remnant
    assert HERE.clusters(Inventory(templates=(named,)))[0].name == "digits"
