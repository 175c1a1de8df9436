"""The stand-in's managed instance groups: resize requests in their states, and what is made again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.standins.compute import Delays, Emulator
from tests.support.compute_clients import ZONE, Plain, bulk_body, until

FAST = Delays(start=0.005, create=0.02, delete=0.02, other=0.01)
INSERT = "compute.instanceGroupManagerResizeRequests.insert"
GROUP = f"zones/{ZONE}/instanceGroupManagers/g"


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(delays=FAST) as emulator:
        yield emulator


@pytest.fixture
def plain(emulator: Emulator) -> Iterator[Plain]:
    with Plain(emulator) as client:
        yield client


def properties() -> dict[str, Any]:
    made = bulk_body("x", machineType="g2-standard-8")["instanceProperties"]
    del made["guestAccelerators"]
    made["scheduling"]["provisioningModel"] = "FLEX_START"
    return {**made, "reservationAffinity": {"consumeReservationType": "NO_RESERVATION"}}


def make_group(plain: Plain, *, action: str = "DO_NOTHING") -> None:
    plain.done(plain("POST", "global/instanceTemplates", {"name": "t", "properties": properties()}))
    body = {
        "name": "g",
        "instanceTemplate": "global/instanceTemplates/t",
        "targetSize": 0,
        "instanceLifecyclePolicy": {"defaultActionOnFailure": action},
    }
    plain.done(plain("POST", f"zones/{ZONE}/instanceGroupManagers", body))


def ask(plain: Plain, *names: str, seconds: int = 3600) -> dict[str, Any]:
    instances = [{"name": name} for name in names]
    body = {"name": "r", "instances": instances, "requestedRunDuration": {"seconds": str(seconds)}}
    return plain.done(plain("POST", f"{GROUP}/resizeRequests", body))


def state(plain: Plain) -> str:
    return str(plain("GET", f"{GROUP}/resizeRequests/r").json["state"])


def statuses(emulator: Emulator) -> dict[str, str]:
    return {vm["name"]: vm["status"] for vm in emulator.state.instances()}


def delete_everything(plain: Plain) -> None:
    plain.done(plain("DELETE", GROUP))
    plain.done(plain("DELETE", "global/instanceTemplates/t"))
    assert plain.emulator.state.left() == []


def test_a_request_waits_with_pending_vms_and_is_granted_all_at_once(emulator: Emulator, plain: Plain) -> None:
    make_group(plain)
    emulator.faults.add({"queue": True}, method=INSERT)
    ask(plain, "a-0", "a-1")
    assert state(plain) == "ACCEPTED"
    assert statuses(emulator) == {"a-0": "PENDING", "a-1": "PENDING"}
    assert plain("GET", GROUP).json["targetSize"] == 2
    emulator.grant()
    until(lambda: state(plain) == "SUCCEEDED")
    assert statuses(emulator) == {"a-0": "RUNNING", "a-1": "RUNNING"}
    assert plain.instance("a-0")["labels"] == bulk_body("x")["instanceProperties"]["labels"]
    assert "final state" in plain("POST", f"{GROUP}/resizeRequests/r/cancel").message
    refused = plain("DELETE", "global/instanceTemplates/t")
    assert (refused.status, refused.reason) == (400, "resourceInUseByAnotherResource")
    delete_everything(plain)


def test_a_request_without_quota_waits_and_says_so(emulator: Emulator, plain: Plain) -> None:
    emulator.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 1, region="us-central1")
    make_group(plain)
    ask(plain, "a-0", "a-1")
    status = plain("GET", f"{GROUP}/resizeRequests/r").json["status"]
    assert status["lastAttempt"]["error"]["errors"][0]["code"] == "QUOTA_EXCEEDED"
    assert state(plain) == "ACCEPTED"
    emulator.set_quota("PREEMPTIBLE_NVIDIA_L4_GPUS", 2, region="us-central1")
    emulator.grant()
    until(lambda: state(plain) == "SUCCEEDED")
    delete_everything(plain)


def test_a_request_that_is_cancelled_or_refused_leaves_no_vm(emulator: Emulator, plain: Plain) -> None:
    make_group(plain)
    emulator.faults.add({"queue": True}, method=INSERT)
    ask(plain, "a-0")
    plain.done(plain("POST", f"{GROUP}/resizeRequests/r/cancel"))
    assert state(plain) == "CANCELLED"
    until(lambda: not statuses(emulator))
    delete_everything(plain)
    make_group(plain)
    emulator.faults.add({"queue": True}, method=INSERT)
    ask(plain, "a-0")
    emulator.refuse()
    assert plain("GET", f"{GROUP}/resizeRequests/r").json["status"]["error"]["errors"][0]["code"] == (
        "ZONE_RESOURCE_POOL_EXHAUSTED"
    )
    assert state(plain) == "FAILED"
    delete_everything(plain)


@pytest.mark.parametrize(("action", "again"), [("REPAIR", True), ("DO_NOTHING", False)])
def test_a_group_makes_a_deleted_vm_again_unless_told_not_to(
    emulator: Emulator, plain: Plain, action: str, again: bool
) -> None:
    make_group(plain, action=action)
    ask(plain, "a-0")
    until(lambda: statuses(emulator) == {"a-0": "RUNNING"})
    before = plain.instance("a-0")["id"]
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/a-0"))
    assert ("a-0" in statuses(emulator)) == again
    assert not again or plain.instance("a-0")["id"] != before
    delete_everything(plain)


def test_a_vm_that_is_deleted_while_its_request_waits_is_made_when_that_is_granted(
    emulator: Emulator, plain: Plain
) -> None:
    make_group(plain)
    emulator.faults.add({"queue": True}, method=INSERT)
    ask(plain, "a-0")
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/a-0"))
    assert statuses(emulator) == {}
    emulator.grant()
    until(lambda: statuses(emulator) == {"a-0": "RUNNING"})
    delete_everything(plain)


def test_what_flex_start_is_refused_for(plain: Plain) -> None:
    body = bulk_body("x")
    del body["instanceProperties"]["guestAccelerators"]
    assert "not supported by bulkInsert" in plain.bulk({**body, "instanceProperties": properties()}).message
    plain.done(plain("POST", "global/instanceTemplates", {"name": "t", "properties": properties()}))
    group = {"name": "g", "instanceTemplate": "global/instanceTemplates/t", "targetSize": 0}
    n1 = {**properties(), "machineType": "n1-standard-4"}
    plain.done(plain("POST", "global/instanceTemplates", {"name": "n1", "properties": n1}))
    wrong = {**group, "instanceTemplate": "global/instanceTemplates/n1"}
    assert "does not support" in plain("POST", f"zones/{ZONE}/instanceGroupManagers", wrong).message
    plain.done(plain("POST", f"zones/{ZONE}/instanceGroupManagers", group))
    request = {"name": "r", "instances": [{"name": "a-0"}], "requestedRunDuration": {"seconds": "599"}}
    assert "10 minutes" in plain("POST", f"{GROUP}/resizeRequests", request).message
    assert "Exactly one" in plain("POST", f"{GROUP}/resizeRequests", {**request, "resizeBy": 1}).message
