"""The stand-in's managed instance groups: what is made again, and what is refused; the rest: test_gce_flex_start.py."""

from __future__ import annotations

from typing import Any

import pytest

from tests.standins.compute import Emulator
from tests.support.compute_clients import ZONE, Plain, bulk_body
from tests.support.harness import until

INSERT = "compute.instanceGroupManagerResizeRequests.insert"
GROUP = f"zones/{ZONE}/instanceGroupManagers/g"


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


def ask(plain: Plain) -> None:
    """Ask the group for the VM a-0."""
    body = {"name": "r", "instances": [{"name": "a-0"}], "requestedRunDuration": {"seconds": "3600"}}
    plain.done(plain("POST", f"{GROUP}/resizeRequests", body))


def statuses(emulator: Emulator) -> dict[str, str]:
    return {vm["name"]: vm["status"] for vm in emulator.state.instances()}


def delete_everything(plain: Plain) -> None:
    plain.done(plain("DELETE", GROUP))
    plain.done(plain("DELETE", "global/instanceTemplates/t"))
    assert plain.emulator.state.left() == []


@pytest.mark.parametrize(("action", "again"), [("REPAIR", True), ("DO_NOTHING", False)])
def test_a_group_makes_a_deleted_vm_again_unless_told_not_to(
    emulator: Emulator, plain: Plain, action: str, again: bool
) -> None:
    make_group(plain, action=action)
    ask(plain)
    until(lambda: statuses(emulator) == {"a-0": "RUNNING"}, what="the VM to run")
    before = plain.instance("a-0")["id"]
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/a-0"))
    assert ("a-0" in statuses(emulator)) == again
    assert not again or plain.instance("a-0")["id"] != before
    delete_everything(plain)


def test_a_vm_that_is_deleted_while_its_request_waits_is_made_all_the_same(emulator: Emulator, plain: Plain) -> None:
    make_group(plain)
    emulator.faults.add({"queue": True}, method=INSERT)
    ask(plain)
    plain.done(plain("DELETE", f"zones/{ZONE}/instances/a-0"))
    assert statuses(emulator) == {}
    emulator.grant()
    until(lambda: statuses(emulator) == {"a-0": "RUNNING"}, what="the VM to run")
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
