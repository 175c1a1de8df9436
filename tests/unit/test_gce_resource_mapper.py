"""API resources → clusters and nodes."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.cluster.model import NodeState
from hvdcloud.providers.gce.inventory import Inventory
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
    return {
        "name": f"digits-{index}",
        "zone": f"{ROOT}/zones/{zone}",
        "status": status,
        "labels": LABELS,
        "machineType": f"{ROOT}/zones/{zone}/machineTypes/n1-standard-8",
        "networkInterfaces": [{"networkIP": f"10.128.0.{index + 2}"}],
        **changes,
    }


HERE = ResourceMapper(project="p", iap=False)


@pytest.mark.parametrize("url", ["file:///etc", "file:///home/me/.ssh", "/etc", "FILE:///etc", ""])
def test_no_vm_names_a_folder_of_this_machine_as_the_bucket(url: str) -> None:
    planted = vm(0, metadata={"items": [{"key": "hvdcloud-bucket", "value": url}]})
    assert HERE.cluster("digits", Inventory(instances=(planted,))).bucket == ""


STATES = {
    NodeState.STARTING: ("PROVISIONING", "STAGING"),
    NodeState.RUNNING: ("RUNNING",),
    NodeState.STOPPED: ("STOPPING", "TERMINATED", "SUSPENDED", "REPAIRING", "SOMETHING_NEW"),
}


@pytest.mark.parametrize("state", STATES)
def test_states(state: NodeState) -> None:
    assert {HERE.node(vm(0, status=status)).state for status in STATES[state]} == {state}


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
