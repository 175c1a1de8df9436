"""The stand-in of Compute Engine is what it says: asked over plain HTTP and through Google's own library."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.standins.compute import BootDelays, Delays, Emulator, Records
from tests.support.compute_clients import LABELS, ZONE, Plain, bulk_body, until

pytestmark = pytest.mark.nightly

FAST = Delays(start=0.005, create=0.02, delete=0.02, other=0.01)
DISK = bulk_body("x")["instanceProperties"]["disks"][0]


@pytest.fixture(scope="module")
def shared() -> Iterator[Emulator]:
    boot = BootDelays(driver=0.01, pulling=0.01, pulled=0.01, starting=0.01, ready=0.01)
    networks = {"mine": {"us-central1": "10.10.0.0/20"}}
    with Emulator(delays=FAST, backing=Records(boot), networks=networks) as emulator:
        yield emulator


@pytest.fixture
def emulator(shared: Emulator) -> Emulator:
    shared.reset()
    return shared


@pytest.fixture
def plain(emulator: Emulator) -> Iterator[Plain]:
    with Plain(emulator) as client:
        yield client


# -- access and schema ---------------------------------------------------------------------------------------------


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
    for method, path, data, permission, resource in (
        ("GET", f"zones/{ZONE}/instances/vm-0", None, "compute.instances.get", f"{vms}/vm-0"),
        ("GET", f"zones/{ZONE}/instances", None, "compute.instances.list", "projects/test-project"),
        ("GET", "aggregated/instances", None, "compute.instances.list", "projects/test-project"),
        ("GET", f"zones/{ZONE}", None, "compute.zones.get", f"projects/test-project/zones/{ZONE}"),
        (
            "POST",
            f"zones/{ZONE}/instances/bulkInsert",
            bulk_body("vm-2"),
            "compute.instances.create",
            "projects/test-project",
        ),
        (
            "POST",
            "global/firewalls",
            {"name": "open", "network": "global/networks/default"},
            "compute.firewalls.create",
            "projects/test-project/global/firewalls/open",
        ),
    ):
        assert plain(method, path, data).message == f"Required '{permission}' permission for '{resource}'"
    assert plain("GET", "aggregated/disks").status == 200
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/vm-0"))
    assert [vm["name"] for vm in emulator.state.instances()] == ["vm-1"]
    emulator.access.deny(emulator.keys.email, "compute.instances.list")
    plain.token = emulator.keys.issue(emulator.keys.email)[0]
    assert plain("GET", "aggregated/instances").status == 403
    assert plain("GET", f"zones/{ZONE}/instances/vm-1").status == 200


def test_googles_library_gets_in_with_the_credentials_file(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(emulator.credentials_file(tmp_path / "key.json")))
    import google.auth
    import google.auth.transport.requests
    from google.cloud import compute_v1

    credentials, project = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    client = compute_v1.ZonesClient(credentials=credentials, client_options={"api_endpoint": emulator.url})
    assert ZONE in [zone.name for zone in client.list(project=project)]
    # The same file by way of POST /token, which the library takes when it doesn't sign for itself.
    credentials.refresh(google.auth.transport.requests.Request())
    with Plain(emulator) as plain:
        plain.token = credentials.token
        assert plain("GET", "zones").status == 200


def test_a_key_of_ones_own_is_refused(emulator: Emulator, plain: Plain) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from google.auth import crypt, jwt

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    now = int(time.time())
    claims = {"iss": emulator.keys.email, "iat": now, "exp": now + 600, "aud": "https://compute.googleapis.com/"}
    plain.token = jwt.encode(crypt.RSASigner.from_string(pem), claims).decode()
    assert plain("GET", "zones").status == 401


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
        ({"scheduling": {"onHostMaintenance": "TERMINATE", "instanceTerminationAction": "DELETE"}}, "unless"),
        (
            {
                "scheduling": {
                    "onHostMaintenance": "TERMINATE",
                    "instanceTerminationAction": "DELETE",
                    "maxRunDuration": {"seconds": "29"},
                }
            },
            "30 seconds",
        ),
        (
            {"scheduling": {"provisioningModel": "SPOT", "onHostMaintenance": "TERMINATE", "automaticRestart": True}},
            "AutomaticRestart",
        ),
        ({"disks": [{**DISK, "boot": False}]}, "boot disk"),
        ({"disks": [{**DISK, "initializeParams": {**DISK["initializeParams"], "diskSizeGb": "5"}}]}, "smaller than"),
        ({"disks": [{**DISK, "initializeParams": {**DISK["initializeParams"], "diskType": "zones/z/pd-ssd"}}]}, "Bare"),
        ({"disks": [{**DISK, "initializeParams": {"sourceImage": "projects/x/global/images/y"}}]}, "was not found"),
        ({"networkInterfaces": [{"network": "global/networks/mine"}]}, "Subnetwork should be specified"),
        ({"networkInterfaces": [{"network": "global/networks/other"}]}, "was not found"),
        ({"networkInterfaces": [{"subnetwork": "regions/us-east1/subnetworks/mine"}]}, "region must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bulk_insert_that_compute_engine_would_refuse(plain: Plain, change: dict[str, Any], says: str) -> None:
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
        {"namePattern": "run-#"},
        {"perInstanceProperties": {"Run": {}}},
        {"perInstanceProperties": {"run-0": {"name": "run-0"}}},
    ],
)
def test_a_bulk_insert_whose_names_and_counts_do_not_fit(plain: Plain, change: dict[str, Any]) -> None:
    assert plain.bulk({**bulk_body("run-0"), **change}).reason == "invalid"


# -- lives ---------------------------------------------------------------------------------------------------------


def test_vms_are_made_become_ready_and_go(plain: Plain) -> None:
    reply = plain.bulk(bulk_body("run-0", "run-1"))
    assert reply.json["status"] == "PENDING"
    operation = plain.done(reply)
    assert "error" not in operation
    assert operation["instancesBulkInsertOperationMetadata"]["perLocationStatus"][f"zones/{ZONE}"] == {
        "status": "DONE",
        "targetVmCount": 2,
        "createdVmCount": 2,
        "failedToCreateVmCount": 0,
        "deletedVmCount": 0,
    }
    group = f"operationGroupId={operation['operationGroupId']} operationType=insert"
    inserts = plain("GET", f"zones/{ZONE}/operations", filter=group).json["items"]
    assert {one["targetLink"].rpartition("/")[2] for one in inserts} == {"run-0", "run-1"}
    vm = plain.instance("run-0")
    assert (vm["status"], vm["labels"], vm["scheduling"]["maxRunDuration"]) == ("RUNNING", LABELS, {"seconds": "14400"})
    assert vm["networkInterfaces"][0]["networkIP"].startswith("10.")
    assert "accessConfigs" not in vm["networkInterfaces"][0]
    disk = plain("GET", f"zones/{ZONE}/disks/run-0").json
    assert (disk["labels"], disk["sizeGb"], disk["users"]) == (LABELS, "100", [vm["selfLink"]])
    assert plain("DELETE", f"zones/{ZONE}/disks/run-0").reason == "resourceInUseByAnotherResource"

    path = f"zones/{ZONE}/instances/run-0"
    until(lambda: plain("GET", f"{path}/getGuestAttributes", queryPath="hvdcloud/").status == 200)
    until(lambda: b"host_key" in plain("GET", f"{path}/getGuestAttributes", queryPath="hvdcloud/status").data)
    assert "hvdcloud: ready" in plain("GET", f"{path}/serialPort").json["contents"]

    deleted = plain.done(plain("DELETE", path))
    assert (deleted["operationType"], deleted["targetId"]) == ("delete", vm["id"])
    assert plain("GET", path).status == 404
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/run-1"))
    assert plain.emulator.state.left() == []


def test_guest_attributes_are_404_until_they_are_written(plain: Plain) -> None:
    plain.emulator.faults.add({"hang_ready": True})
    plain.up("run-0")
    path = f"zones/{ZONE}/instances/run-0/getGuestAttributes"
    reply = plain("GET", path, queryPath="hvdcloud/")
    assert (reply.status, reply.message) == (
        404,
        "The resource 'hvdcloud/' of type 'Guest Attribute' was not found.",
    )
    values = {"namespace": "hostkeys", "key": "ssh-ed25519", "value": "AAAA"}
    plain.emulator.write_guest_attribute(ZONE, "run-0", "hostkeys", "ssh-ed25519", "AAAA")
    assert plain("GET", path, queryPath="hostkeys/").json["queryValue"]["items"] == [values]
    assert plain("GET", path, variableKey="hostkeys/ssh-ed25519").json["variableValue"] == "AAAA"


def test_serial_output_in_pieces(plain: Plain) -> None:
    plain.emulator.faults.add({"hang_ready": True})
    plain.up("run-0")
    until(lambda: plain.emulator.state.vm(ZONE, "run-0").serial)
    plain.emulator.state.vm(ZONE, "run-0").write_serial("x" * (1 << 20))
    path = f"zones/{ZONE}/instances/run-0/serialPort"
    all_of_it = plain("GET", path).json
    assert len(all_of_it["contents"]) == 1 << 20
    assert int(all_of_it["next"]) - int(all_of_it["start"]) == 1 << 20
    assert plain("GET", path, start=-3).json["contents"] == "xxx"
    assert plain("GET", path, start=all_of_it["next"]).json["contents"] == ""


def test_an_operation_goes_through_its_states_in_time() -> None:
    with Emulator(delays=Delays(start=0.15, create=0.3, wait=0.05)) as emulator, Plain(emulator) as plain:
        reply = plain.bulk(bulk_body("run-0"))
        path = reply.json["selfLink"].partition("/test-project/")[2]
        seen = [reply.json["status"]]
        states = []
        while seen[-1] != "DONE":
            # It answers before the operation is over, which a client must expect.
            seen.append(plain("POST", f"{path}/wait").json["status"])
            states += [vm["status"] for vm in emulator.state.instances()]
        assert list(dict.fromkeys(seen)) == ["PENDING", "RUNNING", "DONE"]
        assert list(dict.fromkeys(states)) == ["PROVISIONING", "STAGING", "RUNNING"]


def test_the_same_request_id_is_the_same_operation(plain: Plain) -> None:
    mine = str(uuid.uuid4())
    first = plain.bulk(bulk_body("run-0"), request_id=mine).json
    assert first["clientOperationId"] == mine
    assert plain.bulk(bulk_body("run-0"), request_id=mine).json["name"] == first["name"]
    assert plain.bulk(bulk_body("run-0"), zone="us-central1-b", request_id=mine).status == 400
    assert len([one for one in plain.emulator.state.all_operations() if one["operationType"] == "bulkInsert"]) == 1


def test_a_name_that_is_taken_fails_that_vm_and_rolls_the_others_back(plain: Plain) -> None:
    plain.up("run-1")
    before = plain.instance("run-1")["id"]
    operation = plain.up("run-0", "run-1")
    assert [error["code"] for error in operation["error"]["errors"]] == [
        "VM_MIN_COUNT_NOT_REACHED",
        "RESOURCE_ALREADY_EXISTS",
    ]
    assert [vm["id"] for vm in plain.emulator.state.instances()] == [before]


def test_insert_takes_urls_and_says_at_once_that_a_name_is_taken(plain: Plain) -> None:
    properties = bulk_body("x")["instanceProperties"]
    disk = {**DISK, "initializeParams": {**DISK["initializeParams"], "diskType": f"zones/{ZONE}/diskTypes/pd-ssd"}}
    body = {
        **properties,
        "name": "single",
        "machineType": f"zones/{ZONE}/machineTypes/n1-standard-4",
        "guestAccelerators": [
            {"acceleratorType": f"zones/{ZONE}/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1}
        ],
        "disks": [disk],
        "deletionProtection": True,
    }
    assert "error" not in plain.done(plain("POST", f"zones/{ZONE}/instances", body))
    assert plain("POST", f"zones/{ZONE}/instances", body).reason == "alreadyExists"
    assert plain("POST", f"zones/{ZONE}/instances", {**body, "machineType": "n1-standard-4"}).status == 400
    assert "protected" in plain("DELETE", f"zones/{ZONE}/instances/single").message


def test_deleting_a_vm_that_is_being_made_waits_for_it(plain: Plain) -> None:
    plain.emulator.faults.add({"slow": 0.2}, method="compute.instances.bulkInsert")
    made = plain.bulk(bulk_body("run-0"))
    until(lambda: plain.emulator.state.instances())
    gone = plain("DELETE", f"zones/{ZONE}/instances/run-0")
    assert "error" not in plain.done(made)
    assert "error" not in plain.done(gone)
    assert plain.emulator.state.left() == []


def test_the_time_that_a_vm_may_run_really_ends_it() -> None:
    with Emulator(delays=FAST, time_scale=0.005) as emulator, Plain(emulator) as plain:
        scheduling = {**bulk_body("x")["instanceProperties"]["scheduling"], "maxRunDuration": {"seconds": "60"}}
        plain.up("run-0", scheduling=scheduling)
        assert "terminationTimestamp" in plain.instance("run-0")["resourceStatus"]["scheduling"]
        plain.up("run-1", scheduling={**scheduling, "instanceTerminationAction": "STOP"})
        until(lambda: [vm["status"] for vm in emulator.state.instances()] == ["TERMINATED"])
        assert [disk["name"] for disk in emulator.state.all_disks()] == ["run-1"]


def test_a_disk_that_is_not_to_go_with_its_vm_stays_and_can_be_deleted(plain: Plain) -> None:
    plain.up("run-0", disks=[{**DISK, "autoDelete": False}])
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/run-0"))
    assert [disk["name"] for disk in plain("GET", f"zones/{ZONE}/disks").json["items"]] == ["run-0"]
    plain.done(plain("DELETE", f"zones/{ZONE}/disks/run-0"))
    assert plain.emulator.state.left() == []


def test_firewall_rules(plain: Plain) -> None:
    rule = {
        "name": "run-ssh",
        "allowed": [{"IPProtocol": "tcp", "ports": ["2222"]}],
        "sourceRanges": ["198.51.100.7/32"],
        "targetTags": ["run"],
    }
    plain.done(plain("POST", "global/firewalls", rule))
    stored = plain("GET", "global/firewalls/run-ssh").json
    assert (stored["direction"], stored["priority"]) == ("INGRESS", 1000)
    assert stored["network"].endswith("/global/networks/default")
    assert plain("POST", "global/firewalls", rule).status == 409
    assert plain("POST", "global/firewalls", {**rule, "name": "x", "sourceRanges": ["1.2.3.4/8"]}).status == 400
    assert plain("POST", "global/firewalls", {"name": "x"}).status == 400
    plain.done(plain("DELETE", "global/firewalls/run-ssh"))
    assert plain("DELETE", "global/firewalls/run-ssh").status == 404


# -- many ----------------------------------------------------------------------------------------------------------
