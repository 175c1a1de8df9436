"""The stand-in of Compute Engine is what it says: asked over plain HTTP and through Google's own library."""

from __future__ import annotations

from typing import Any

import pytest

from tests.standins.compute import Emulator
from tests.support.compute_clients import ZONE, Plain, bulk_body

pytestmark = pytest.mark.nightly

DISK = bulk_body("x")["instanceProperties"]["disks"][0]
DELETED = {"onHostMaintenance": "TERMINATE", "instanceTerminationAction": "DELETE"}


def test_no_or_a_wrong_token_is_401(plain: Plain) -> None:
    plain.token = None
    assert plain("GET", "zones").status == 401
    plain.token = "ya29.made-up"
    assert plain("GET", "zones").reason == "authError"


def test_an_account_may_what_it_was_granted_and_nothing_else(emulator: Emulator, plain: Plain) -> None:
    plain.up("vm-0", "vm-1")
    account = "nodes@test-project.iam.gserviceaccount.com"
    vms = f"projects/test-project/zones/{ZONE}/instances"
    emulator.access.allow(account, "compute.instances.delete", resource=f"{vms}/vm-0")
    emulator.access.allow(account, "compute.zoneOperations.get", "compute.disks.list")
    plain.token = emulator.keys.issue(account)[0]
    refused = plain("DELETE", f"zones/{ZONE}/instances/vm-1")
    assert (refused.status, refused.reason) == (403, "forbidden")
    assert refused.message == f"Required 'compute.instances.delete' permission for '{vms}/vm-1'"
    error = refused.json["error"]
    assert error["status"] == "PERMISSION_DENIED"
    (info,) = error["details"]
    assert (info["reason"], info["domain"]) == ("IAM_PERMISSION_DENIED", "compute.googleapis.com")
    assert info["metadata"] == {"permission": "compute.instances.delete", "resource": f"{vms}/vm-1"}
    project, rule = "projects/test-project", {"name": "open", "network": "global/networks/default"}
    for method, path, data, permission, resource in (
        ("GET", f"zones/{ZONE}/instances/vm-0", None, "compute.instances.get", f"{vms}/vm-0"),
        ("GET", f"zones/{ZONE}/instances", None, "compute.instances.list", project),
        ("GET", "aggregated/instances", None, "compute.instances.list", project),
        ("GET", f"zones/{ZONE}", None, "compute.zones.get", f"{project}/zones/{ZONE}"),
        ("POST", f"zones/{ZONE}/instances/bulkInsert", bulk_body("vm-2"), "compute.instances.create", project),
        ("POST", "global/firewalls", rule, "compute.firewalls.create", f"{project}/global/firewalls/open"),
    ):
        assert plain(method, path, data).message == f"Required '{permission}' permission for '{resource}'"
    assert plain("GET", "aggregated/disks").status == 200
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/vm-0"))
    assert [vm["name"] for vm in emulator.state.instances()] == ["vm-1"]
    emulator.access.deny(emulator.keys.email, "compute.instances.list")
    plain.token = emulator.keys.issue(emulator.keys.email)[0]
    assert plain("GET", "aggregated/instances").status == 403
    assert plain("GET", f"zones/{ZONE}/instances/vm-1").status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "zones/us-central1-a/nonsense", 404, "not found"),
        ("PUT", "zones/us-central1-a/instances", 404, "not found"),
        ("GET", "zones?nonsense=true", 400, "nonsense"),
        ("GET", "zones?maxResults=501", 400, "maxResults"),
        ("GET", "zones?filter=nonsense=1", 400, "no field 'nonsense'"),
        ("GET", "zones?filter=(name+eq+x)(name=x)", 400, "invalid list filter"),
        ("GET", "zones/Nowhere/instances", 400, "must be a match of regex"),
        ("GET", "zones/us-central1-z/instances", 400, "unknown zone"),
        ("GET", "zones/us-central1-a/instances/none", 404, "was not found"),
        ("POST", "zones/us-central1-a/instances/run-0/stop", 501, "compute.instances.stop"),
    ],
)
def test_what_is_not_right_is_refused(plain: Plain, method: str, path: str, status: int, says: str) -> None:
    reply = plain(method, path)
    assert (reply.status, says in reply.data.decode().lower() or says in reply.data.decode()) == (status, True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"machineTypes": "x"}, 'Unknown name "machineTypes"'),
        ({"scheduling": {"provisioningModel": "CHEAP"}}, "CHEAP"),
        ({"labels": ["x"]}, "labels"),
        ({"labels": {"Upper": "x"}}, "Label keys"),
        ({"labels": {"x": "UPPER"}}, "Label values"),
        ({"labels": {f"k{number}": "" for number in range(65)}}, "64"),
        ({"metadata": {"items": [{"key": "a b", "value": ""}]}}, "a b"),
        ({"metadata": {"items": [{"key": "a", "value": "x" * 262145}]}}, "too large"),
        ({"tags": {"items": ["Upper"]}}, "Upper"),
        ({"machineType": "n1-standard-3"}, "does not exist"),
        ({"machineType": "n1-standard-64"}, "too large"),
        ({"machineType": "f1-micro"}, "not compatible"),
        ({"machineType": "g2-standard-4"}, "comes with its GPUs"),
        ({"guestAccelerators": [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 3}]}, "Allowed: [1, 2, 4]"),
        ({"guestAccelerators": [{"acceleratorType": "nvidia-tesla-p100", "acceleratorCount": 1}]}, "was not found"),
        ({"guestAccelerators": [{"acceleratorType": "zones/z/x", "acceleratorCount": 1}]}, "was not found"),
        ({"scheduling": {"onHostMaintenance": "MIGRATE"}}, "live migration"),
        ({"scheduling": DELETED}, "unless"),
        ({"scheduling": {**DELETED, "maxRunDuration": {"seconds": "29"}}}, "30 seconds"),
        (
            {"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": True}},
            "AutomaticRestart",
        ),
        ({"disks": [{**DISK, "boot": False}]}, "boot disk"),
        ({"disks": [{**DISK, "initializeParams": {**DISK["initializeParams"], "diskSizeGb": "5"}}]}, "smaller than"),
        ({"disks": [{**DISK, "initializeParams": {**DISK["initializeParams"], "diskType": "zones/z/pd-ssd"}}]}, "Bare"),
        (
            {"disks": [{**DISK, "initializeParams": {**DISK["initializeParams"], "diskType": "hyperdisk-balanced"}}]},
            "not compatible",
        ),
        ({"disks": [{**DISK, "initializeParams": {"sourceImage": "projects/x/global/images/y"}}]}, "was not found"),
        ({"networkInterfaces": [{"network": "global/networks/mine"}]}, "Subnetwork should be specified"),
        ({"networkInterfaces": [{"network": "global/networks/other"}]}, "was not found"),
        ({"networkInterfaces": [{"subnetwork": "regions/us-east1/subnetworks/mine"}]}, "region must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bulk_insert_that_compute_engine_would_refuse(plain: Plain, change: dict[str, Any], says: str) -> None:
    plain.emulator.add_network("mine", {"us-central1": "10.10.0.0/20"})
    reply = plain.bulk(bulk_body("run-0", **change))
    assert reply.status in (400, 404)
    assert says in reply.message
    assert plain.emulator.state.all_operations() == []


@pytest.mark.parametrize(
    "change",
    [
        {"count": "2"},
        {"minCount": "2"},
        {"count": "0"},
        {"perInstanceProperties": {"Run": {}}},
        {"perInstanceProperties": {"run-0": {"name": "run-0"}}},
    ],
)
def test_a_bulk_insert_whose_names_and_counts_do_not_fit(plain: Plain, change: dict[str, Any]) -> None:
    assert plain.bulk({**bulk_body("run-0"), **change}).reason == "invalid"
