"""What the stand-in of Compute Engine does on command: its fault plan, and batches."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.standins.compute import Delays, Emulator
from tests.support.compute_clients import ZONE, Plain, bulk_body, until

BULK = "compute.instances.bulkInsert"


@pytest.fixture(scope="module")
def shared() -> Iterator[Emulator]:
    with Emulator(delays=Delays(start=0.005, create=0.02, delete=0.02, other=0.01)) as emulator:
        yield emulator


@pytest.fixture
def emulator(shared: Emulator) -> Emulator:
    shared.reset()
    return shared


@pytest.fixture
def plain(emulator: Emulator) -> Iterator[Plain]:
    with Plain(emulator) as client:
        yield client


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ({"status": 401}, "authError"),
        ({"status": 403}, "forbidden"),
        ({"status": 403, "reason": "rateLimitExceeded"}, "rateLimitExceeded"),
        ({"status": 404}, "notFound"),
        ({"status": 409}, "alreadyExists"),
        ({"status": 412}, "conditionNotMet"),
        ({"status": 429, "retry_after": 1}, "rateLimitExceeded"),
        ({"status": 500}, "internalError"),
        ({"status": 502}, "backendError"),
        ({"status": 503}, "backendError"),
    ],
)
def test_an_answer_of_any_status_without_an_effect(plain: Plain, action: dict[str, Any], reason: str) -> None:
    plain.admin("POST", "faults", {"method": BULK, "zone": ZONE, "skip": 1, "action": action})
    assert plain.bulk(bulk_body("a")).status == 200
    assert plain.bulk(bulk_body("c"), zone="us-central1-b").status == 200
    reply = plain.bulk(bulk_body("b"))
    assert (reply.status, reply.reason) == (action["status"], reason)
    assert reply.headers.get("Retry-After") == ("1" if "retry_after" in action else None)
    assert plain.bulk(bulk_body("d")).status == 200
    until(lambda: {vm["name"] for vm in plain.emulator.state.instances()} == {"a", "c", "d"})


def test_googles_details_of_an_error(plain: Plain) -> None:
    info = {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "SERVICE_DISABLED",
        "domain": "googleapis.com",
        "metadata": {"activationUrl": "https://console.developers.google.com/apis"},
    }
    plain.emulator.faults.add({"status": 403, "details": [info]}, method="compute.zones.*")
    error = plain("GET", "zones").json["error"]
    assert (error["status"], error["details"]) == ("PERMISSION_DENIED", [info])


def test_503_after_the_effect(plain: Plain) -> None:
    plain.emulator.faults.add({"status": 503, "effect": True}, method=BULK)
    mine = str(uuid.uuid4())
    assert plain.bulk(bulk_body("run-0"), request_id=mine).status == 503
    assert "error" not in plain.done(plain.bulk(bulk_body("run-0"), request_id=mine))


@pytest.mark.parametrize(("when", "effect"), [("before", False), ("after", True)])
def test_a_reset_connection(plain: Plain, when: str, effect: bool) -> None:
    plain.emulator.faults.add({"reset": when}, method=BULK)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        plain.bulk(bulk_body("run-0"))
    assert bool(plain.emulator.state.all_operations()) == effect
    assert plain.emulator.log.entries()[-1].status == 0


def test_a_delayed_answer(plain: Plain) -> None:
    plain.emulator.faults.add({"delay": 0.2}, method="compute.zones.list")
    start = time.monotonic()
    assert plain("GET", "zones").status == 200
    assert time.monotonic() - start >= 0.2


def test_a_held_request_continues_when_released(plain: Plain) -> None:
    plain.emulator.faults.add({"hold": "before"}, method=BULK)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(plain.bulk(bulk_body("run-0"))))
    thread.start()
    assert plain.emulator.faults.wait_held()
    with Plain(plain.emulator) as other:
        assert other.admin("GET", "faults")["held"] == [{"when": "before", "method": BULK}]
        assert other.admin("GET", "requests")["requests"][-1]["status"] is None
        assert plain.emulator.state.all_operations() == []
        other.admin("DELETE", "faults/hold")
    thread.join()
    assert replies[0].status == 200


CLIENT = """
import http.client, sys
connection = http.client.HTTPConnection(sys.argv[1])
connection.request("POST", sys.argv[2], sys.argv[3], {"Authorization": sys.argv[4], "Content-Type": "application/json"})
connection.getresponse()
"""


@pytest.mark.parametrize(("when", "effect"), [("before", False), ("after", True)])
def test_a_client_that_is_killed_at_its_third_request(plain: Plain, when: str, effect: bool) -> None:
    plain.emulator.faults.add({"hold": when}, skip=2)
    plain("GET", "zones")
    plain("GET", "zones")
    address = plain.emulator.url.partition("//")[2]
    path = f"/compute/v1/projects/test-project/zones/{ZONE}/instances/bulkInsert"
    command = [sys.executable, "-c", CLIENT, address, path, json.dumps(bulk_body("run-0")), f"Bearer {plain.token}"]
    with subprocess.Popen(command) as client:
        assert plain.emulator.faults.wait_held()
        client.kill()
    until(lambda: plain.emulator.log.entries()[-1].status == 0)
    assert bool(plain.emulator.state.all_operations()) == effect


# -- operations ----------------------------------------------------------------------------------------------------


def test_an_operation_that_is_done_with_an_error_and_no_http_status(plain: Plain) -> None:
    action = {"operation_error": {"code": "RESOURCE_NOT_READY", "message": "not ready"}}
    plain.emulator.faults.add(action, method=BULK)
    operation = plain.up("run-0")
    assert operation["error"]["errors"] == [{"code": "RESOURCE_NOT_READY", "message": "not ready"}]
    assert "httpErrorStatusCode" not in operation
    assert plain.emulator.state.left() == []
    insert = plain("GET", f"zones/{ZONE}/operations", filter="operationType=insert").json["items"][0]
    assert insert["error"] == operation["error"]


def test_an_operation_error_of_a_deletion_leaves_the_vm_unless_told_otherwise(plain: Plain) -> None:
    plain.up("run-0", "run-1")
    error = {"code": "INTERNAL_ERROR", "http": 500}
    plain.emulator.faults.add({"operation_error": error}, method="compute.instances.delete", instance="run-0")
    failed = plain.done(plain("DELETE", f"zones/{ZONE}/instances/run-0"))
    assert (failed["error"]["errors"][0]["code"], failed["httpErrorStatusCode"]) == ("INTERNAL_ERROR", 500)
    assert plain.instance("run-0")["status"] == "RUNNING"
    assert "error" not in plain.done(plain("DELETE", f"zones/{ZONE}/instances/run-0"))
    plain.emulator.faults.add({"operation_error": error, "effect": True}, method="compute.firewalls.insert")
    rule = {"name": "x", "allowed": [{"IPProtocol": "tcp"}]}
    assert "error" in plain.done(plain("POST", "global/firewalls", rule))
    assert plain("GET", "global/firewalls/x").status == 200


def test_an_operation_error_after_the_vms_were_made(plain: Plain) -> None:
    plain.emulator.faults.add({"operation_error": {"code": "INTERNAL_ERROR"}, "effect": True}, method=BULK)
    assert "error" in plain.up("run-0")
    assert plain.instance("run-0")["status"] == "RUNNING"


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_stockout_rolls_back(plain: Plain, after: int) -> None:
    plain.emulator.faults.add({"stockout": {"after": after}}, zone=ZONE, method=BULK)
    seen = set()
    reply = plain.bulk(bulk_body("run-0", "run-1", "run-2"))
    while not plain.emulator.state.operations.find(f"zones/{ZONE}", reply.json["name"]).done.is_set():
        seen |= {vm["name"] for vm in plain.emulator.state.instances() if vm["status"] == "RUNNING"}
        time.sleep(0.002)
    assert len(seen) <= after
    operation = plain.done(reply)
    codes = [error["code"] for error in operation["error"]["errors"]]
    assert codes == ["VM_MIN_COUNT_NOT_REACHED", "ZONE_RESOURCE_POOL_EXHAUSTED"]
    counts = operation["instancesBulkInsertOperationMetadata"]["perLocationStatus"][f"zones/{ZONE}"]
    assert (counts["createdVmCount"], counts["deletedVmCount"]) == (after, after)
    assert counts["failedToCreateVmCount"] == 3 - after
    assert plain.emulator.state.left() == []
    assert "error" not in plain.up("run-0", zone="us-central1-b")


@pytest.mark.parametrize(("report", "codes"), [("summary", ["VM_MIN_COUNT_NOT_REACHED"]), ("cause", ["GPU_STOCKOUT"])])
def test_a_stockout_may_say_less(plain: Plain, report: str, codes: list[str]) -> None:
    plain.emulator.faults.add({"stockout": {"report": report, "code": "GPU_STOCKOUT"}}, method=BULK)
    assert [error["code"] for error in plain.up("run-0")["error"]["errors"]] == codes


def test_a_slow_operation(plain: Plain) -> None:
    plain.emulator.faults.add({"slow": 0.3}, method=BULK)
    reply = plain.bulk(bulk_body("run-0"))
    until(lambda: [vm["status"] for vm in plain.emulator.state.instances()] == ["STAGING"])
    assert "error" not in plain.done(reply)


# -- machines ------------------------------------------------------------------------------------------------------


def _status(plain: Plain, name: str) -> dict[str, Any]:
    reply = plain("GET", f"zones/{ZONE}/instances/{name}/getGuestAttributes", queryPath="hvdcloud/status")
    return json.loads(reply.json["queryValue"]["items"][0]["value"]) if reply.status == 200 else {}


def test_machines_that_hang_fail_and_die(plain: Plain) -> None:
    plain.emulator.faults.add({"hang_ready": True, "at": "pulling"}, instance="run-0")
    plain.emulator.faults.add({"fail_ready": {"step": "pull", "error": "no such image"}}, instance="run-1")
    plain.emulator.faults.add({"die": 0.05}, zone=ZONE, instance="run-2")
    plain.up("run-0", "run-1", "run-2", "run-3")
    until(lambda: _status(plain, "run-3").get("status") == "ready")
    assert _status(plain, "run-1") == {"status": "failed", "step": "pull", "error": "no such image"}
    assert _status(plain, "run-0") == {"status": "pulling", "percent": 100, "beside": "driver"}
    until(lambda: plain.instance("run-2")["status"] == "TERMINATED")


@pytest.mark.parametrize("action", ["DELETE", "STOP"])
def test_a_vm_is_preempted(plain: Plain, action: str) -> None:
    scheduling = {
        "provisioningModel": "SPOT",
        "onHostMaintenance": "TERMINATE",
        "automaticRestart": False,
        "instanceTerminationAction": action,
    }
    plain.up("run-0", scheduling=scheduling)
    plain.admin("POST", f"instances/{ZONE}/run-0/preempt")
    preempted = {"filter": "operationType=compute.instances.preempted"}
    operation = plain("GET", f"zones/{ZONE}/operations", **preempted).json["items"][0]
    assert operation["user"] == "system@google.com"
    if action == "DELETE":
        until(lambda: plain.emulator.state.left() == [])
    else:
        until(lambda: plain.instance("run-0")["status"] == "TERMINATED")
    assert plain("GET", f"zones/{ZONE}/operations", **preempted).json["items"][0]["status"] == "DONE"


@pytest.mark.parametrize(
    ("scheduling", "what"),
    [
        ({"provisioningModel": "SPOT", "instanceTerminationAction": "DELETE"}, "gone"),
        ({"provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}, "TERMINATED"),
        ({}, "TERMINATED"),
        ({"onHostMaintenance": "MIGRATE", "automaticRestart": True}, "RUNNING"),
    ],
)
def test_a_simulated_maintenance_is_a_preemption_for_spot_vms(
    plain: Plain, scheduling: dict[str, Any], what: str
) -> None:
    properties: dict[str, Any] = {"guestAccelerators": []} if what == "RUNNING" else {}
    asked = {"onHostMaintenance": "TERMINATE", "automaticRestart": False, **scheduling}
    plain.up("run-0", scheduling=asked, **properties)
    plain.done(plain("POST", f"zones/{ZONE}/instances/run-0/simulateMaintenanceEvent"))
    if what == "gone":
        until(lambda: plain.emulator.state.left() == [])
    else:
        until(lambda: plain.instance("run-0")["status"] == what)
    preempted = {"filter": "operationType=compute.instances.preempted"}
    operations = plain("GET", f"zones/{ZONE}/operations", **preempted).json.get("items", [])
    assert len(operations) == (scheduling.get("provisioningModel") == "SPOT")
    if what != "RUNNING":
        reply = plain("POST", f"zones/{ZONE}/instances/run-0/simulateMaintenanceEvent")
        assert reply.status == (404 if what == "gone" else 400)


def test_a_vm_that_is_killed_is_off_and_can_still_be_deleted(plain: Plain) -> None:
    plain.up("run-0")
    plain.admin("POST", f"instances/{ZONE}/run-0/kill")
    until(lambda: plain.instance("run-0")["status"] == "TERMINATED")
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/run-0"))
    assert plain.emulator.state.left() == []


def test_revoked_tokens(plain: Plain) -> None:
    plain.emulator.keys.revoke()
    assert plain("GET", "zones").status == 401


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"action": {}},
        {"action": {"status": 200}},
        {"action": {"status": 503, "reset": "before"}},
        {"action": {"explode": True}},
        {"action": {"hold": "during"}},
        {"action": {"stockout": {"when": 1}}},
        {"action": {"slow": 1}, "colour": "red"},
    ],
)
def test_what_is_no_rule_is_refused(plain: Plain, rule: dict[str, Any]) -> None:
    assert plain.send("POST", "/_emulator/faults", rule).status == 400


# -- batches -------------------------------------------------------------------------------------------------------


def _batch(plain: Plain, *calls: str) -> Any:
    parts = [
        f"--b\r\nContent-Type: application/http\r\nContent-ID: <{number}>\r\n\r\n{call} HTTP/1.1\r\n\r\n\r\n"
        for number, call in enumerate(calls)
    ]
    body = ("".join(parts) + "--b--\r\n").encode()
    return plain.send("POST", "/batch/compute/v1", body, {"Content-Type": "multipart/mixed; boundary=b"})


def _parts(reply: Any) -> list[tuple[str, int, Any]]:
    from email.parser import BytesParser

    kind = reply.headers["Content-Type"].encode()
    whole = BytesParser().parsebytes(b"Content-Type: " + kind + b"\r\n\r\n" + reply.data)
    found = []
    for part in whole.get_payload():
        head, _, body = part.get_payload().replace("\r\n", "\n").partition("\n\n")
        found.append((part["Content-ID"], int(head.split(" ")[1]), json.loads(body)))
    return found


def test_a_batch_answers_each_call(plain: Plain) -> None:
    plain.up("run-0")
    root = f"/compute/v1/projects/test-project/zones/{ZONE}/instances"
    plain.emulator.log.clear()
    reply = _batch(plain, f"GET {root}/run-0", f"GET {root}/none", f"DELETE {root}/run-0")
    assert [(name, status) for name, status, _ in _parts(reply)] == [
        ("<response-0>", 200),
        ("<response-1>", 404),
        ("<response-2>", 200),
    ]
    assert [(entry.method, entry.part) for entry in plain.emulator.log.entries()] == [
        ("batch", False),
        ("compute.instances.get", True),
        ("compute.instances.get", True),
        ("compute.instances.delete", True),
    ]
    until(lambda: plain.emulator.state.left() == [])


def test_faults_of_batches_and_of_their_parts(plain: Plain) -> None:
    zone = f"GET /compute/v1/projects/test-project/zones/{ZONE}"
    plain.emulator.faults.add({"status": 503}, method="compute.zones.get", skip=1)
    assert [status for _, status, _ in _parts(_batch(plain, zone, zone, zone))] == [200, 503, 200]
    plain.emulator.faults.add({"status": 404}, method="batch")
    assert _batch(plain, zone).status == 404
    plain.emulator.faults.add({"status": 500})
    assert _batch(plain, zone).status == 500
    assert plain.send("POST", "/batch/compute/v1", b"x", {"Content-Type": "text/plain"}).status == 400
    plain.token = None
    assert _batch(plain, zone).status == 401
