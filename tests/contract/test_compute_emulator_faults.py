"""What the stand-in of Compute Engine does on command: its fault plan, and batches."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.standins.compute import Delays, Emulator
from tests.support.compute_clients import ZONE, Plain, bulk_body, until

pytestmark = pytest.mark.nightly

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
    plain.emulator.faults.add(action, method=BULK, zone=ZONE, skip=1)
    assert plain.bulk(bulk_body("a")).status == 200
    assert plain.bulk(bulk_body("c"), zone="us-central1-b").status == 200
    reply = plain.bulk(bulk_body("b"))
    assert (reply.status, reply.reason) == (action["status"], reason)
    assert reply.headers.get("Retry-After") == ("1" if "retry_after" in action else None)
    assert plain.bulk(bulk_body("d")).status == 200
    until(lambda: {vm["name"] for vm in plain.emulator.state.instances()} == {"a", "c", "d"})


@pytest.mark.parametrize(("when", "effect"), [("before", False), ("after", True)])
def test_a_reset_connection(plain: Plain, when: str, effect: bool) -> None:
    plain.emulator.faults.add({"reset": when}, method=BULK)
    with pytest.raises((ConnectionError, http.client.HTTPException)):
        plain.bulk(bulk_body("run-0"))
    assert bool(plain.emulator.state.all_operations()) == effect
    assert plain.emulator.log.entries()[-1].status == 0


def test_a_held_request_continues_when_released(plain: Plain) -> None:
    plain.emulator.faults.add({"hold": "before"}, method=BULK)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(plain.bulk(bulk_body("run-0"))))
    thread.start()
    assert plain.emulator.faults.wait_held()
    assert plain.emulator.faults.plain()["held"] == [{"when": "before", "method": BULK}]
    assert plain.emulator.log.entries()[-1].status is None
    assert plain.emulator.state.all_operations() == []
    plain.emulator.faults.release()
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
    plain.emulator.preempt(ZONE, "run-0")
    preempted = {"filter": "operationType=compute.instances.preempted"}
    operation = plain("GET", f"zones/{ZONE}/operations", **preempted).json["items"][0]
    assert operation["user"] == "system@google.com"
    if action == "DELETE":
        until(lambda: plain.emulator.state.left() == [])
    else:
        until(lambda: plain.instance("run-0")["status"] == "TERMINATED")
    assert plain("GET", f"zones/{ZONE}/operations", **preempted).json["items"][0]["status"] == "DONE"


def test_a_vm_that_is_killed_is_off_and_can_still_be_deleted(plain: Plain) -> None:
    plain.up("run-0")
    plain.emulator.kill(ZONE, "run-0")
    until(lambda: plain.instance("run-0")["status"] == "TERMINATED")
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/run-0"))
    assert plain.emulator.state.left() == []


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
