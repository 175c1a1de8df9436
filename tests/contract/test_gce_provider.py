"""The Compute Engine provider against the emulator (records): what it promises, and every way in which it can go wrong.

Each test ends with an emulator that holds nothing: neither VMs, nor disks, nor firewall rules.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, NodeError, TeardownError, UsageError
from hvdcloud.providers.base import NodeProgress, UnseenError
from hvdcloud.providers.gce.names import request_id
from hvdcloud.providers.gce.ops import create
from tests.standins.compute import BootDelays, Delays, Emulator, Records
from tests.support.gce_bench import BULK_INSERT, DELETE, A, B, Bench, W, interrupt_when

NEW_ACCOUNT = "nodes@test-project.iam.gserviceaccount.com"


@pytest.fixture
def delays() -> Delays:
    return Delays()


@pytest.fixture
def boot() -> BootDelays:
    return BootDelays()


@pytest.fixture
def bench(delays: Delays, boot: BootDelays) -> Iterator[Bench]:
    with Emulator(backing=Records(boot), delays=delays) as emulator:
        yield (bench := Bench(emulator))
        assert bench.left == []


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed for a passing reason is requested again after a tenth of the time."""
    monkeypatch.setattr(create, "BACKOFF_SECONDS", create.BACKOFF_SECONDS / 10)


def test_nodes_do_not_get_the_projects_default_account_unless_it_is_named(bench: Bench) -> None:
    unset = bench.another(service_account=None)
    with pytest.raises(UsageError, match="is not set") as refused:
        unset.plan(bench.spec())
    assert "gce.service_account: default" in refused.value.hint
    assert bench.calls() == {}


def test_nodes_have_their_addresses_and_down_says_what_it_deleted(bench: Bench) -> None:
    spec = bench.spec()
    nodes = bench.create(spec)
    assert [node.id for node in nodes] == [f"{A}/{spec.node_name(0)}", f"{A}/{spec.node_name(1)}"]
    ready = bench.wait(nodes)
    assert all(node.address and node.port == 2222 for node in ready)
    head = bench.emulator.state.vm(A, spec.node_name(0)).resource
    assert ready[0].internal_address == head["networkInterfaces"][0]["networkIP"]
    elsewhere = bench.another()
    (found,) = elsewhere.list().clusters
    assert [node.address for node in found.nodes] == [node.address for node in ready]
    gone: list[str] = []
    assert elsewhere.destroy(spec.name, on_progress=lambda progress: gone.append(progress.object)) == []
    assert {f"VM {A}/{spec.node_name(0)}", f"firewall hvdcloud-{spec.name}-{spec.id}-ssh"} <= set(gone)
    assert len(gone) == len(set(gone))
    # Lists are not of one moment: a disk may be there without its VM, which is deleted with it.
    assert len([each for each in gone if not each.startswith("disk ")]) == 4
    assert elsewhere.list().clusters == ()


def models(bench: Bench) -> dict[str, tuple[str, str]]:
    """Node → machine type and provisioning model."""
    return {
        vm["name"].rpartition("-")[2]: (
            vm["machineType"].rpartition("/")[2],
            vm["scheduling"]["provisioningModel"],
        )
        for vm in bench.emulator.state.instances()
    }


def test_the_head_is_on_demand_and_the_workers_are_spot_vms_of_one_cluster(bench: Bench) -> None:
    provider = bench.another(provisioning="spot", elastic=True)
    spec = bench.spec(nodes=4)
    plan = provider.plan(spec)
    assert "3 workers: n1-standard-8 with 1 nvidia-tesla-t4, Spot, $0.33/h each" in plan.notices
    nodes = bench.create(spec, provider)
    assert [node.index for node in nodes] == [0, 1, 2, 3]
    worker = ("n1-standard-8", "SPOT")
    assert models(bench) == {"0": ("n1-standard-8", "STANDARD"), "1": worker, "2": worker, "3": worker}
    bench.wait(nodes)
    (found,) = bench.another().list().clusters
    assert found.whole
    assert found.dollars_per_hour == pytest.approx(plan.dollars_per_hour)
    assert found.worst_case_dollars is not None
    assert plan.worst_case_dollars is not None
    assert found.worst_case_dollars <= plan.worst_case_dollars
    assert bench.another().destroy(spec.name) == []


@pytest.mark.parametrize(("skip", "asked"), [(0, [A, B, B]), (1, [A, A, B, B])], ids=["no workers", "no head"])
def test_head_and_workers_are_made_in_one_zone_or_not_at_all(bench: Bench, skip: int, asked: list[str]) -> None:
    bench.fail({"stockout": {}}, method=BULK_INSERT, zone=A, skip=skip)
    provider = bench.another(provisioning="spot", elastic=True)
    spec = bench.spec(nodes=3)
    nodes = bench.create(spec, provider)
    assert bench.zones_asked() == asked
    assert {node.id.partition("/")[0] for node in nodes} == {B}
    assert models(bench) == {
        "0": ("n1-standard-8", "STANDARD"),
        "1": ("n1-standard-8", "SPOT"),
        "2": ("n1-standard-8", "SPOT"),
    }
    provider.destroy(spec.name)


def test_without_room_for_the_head_anywhere_no_worker_is_left(bench: Bench) -> None:
    for zone in (A, B, W):
        bench.fail({"stockout": {}}, method=BULK_INSERT, zone=zone, skip=1)
    with pytest.raises(CapacityError) as caught:
        bench.create(bench.spec(nodes=3), bench.another(provisioning="spot", elastic=True))
    assert "(n1-standard-8 with 1 nvidia-tesla-t4, Spot; n1-standard-8 with 1 nvidia-tesla-t4)" in caught.value.message
    assert bench.zones_asked() == [A, A, B, B, W, W]
    assert bench.left == []


def test_ctrl_c_between_workers_and_head_leaves_nothing(bench: Bench) -> None:
    provider = bench.another(provisioning="spot", elastic=True)
    spec = bench.spec(nodes=3)
    plan = provider.plan(spec)

    def interrupt(progress: NodeProgress) -> None:
        bench.say(progress)
        if progress.step == "asking for 1 VM":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        provider.create(plan, on_progress=interrupt)
    assert (A, "asking for 2 VMs") in bench.said
    assert bench.left == []


@pytest.mark.parametrize("stockout", [{}, {"after": 1}, {"report": "summary"}, {"after": 1, "report": "summary"}])
def test_a_zone_without_room_is_left_for_the_next(bench: Bench, stockout: dict[str, Any]) -> None:
    bench.fail({"stockout": stockout}, method=BULK_INSERT, zone=A)
    spec = bench.spec()
    nodes = bench.create(spec)
    assert {node.id.partition("/")[0] for node in nodes} == {B}
    assert bench.zones_asked() == [A, B]
    assert any(name == A and step.startswith("no capacity: ZONE_RESOURCE_POOL") for name, step in bench.said)
    assert bench.provider.destroy(spec.name) == []


def test_no_room_anywhere_is_a_line_for_each_zone_and_exit_code_4(bench: Bench) -> None:
    bench.fail({"stockout": {}}, method=BULK_INSERT, times=None)
    spec = bench.spec()
    with pytest.raises(CapacityError) as caught:
        bench.create(spec)
    lines = caught.value.details.splitlines()
    assert [line.partition(": ")[0] for line in lines] == [A, B, W]
    assert all("ZONE_RESOURCE_POOL_EXHAUSTED" in line for line in lines)
    assert "3 zone" in caught.value.message
    assert caught.value.hint
    assert bench.left == []


def test_no_quota_of_the_project_ends_the_search(bench: Bench) -> None:
    spec = bench.spec()
    plan = bench.provider.plan(spec)
    bench.emulator.set_quota("GPUS_ALL_REGIONS", 0)
    with pytest.raises(CapacityError, match="GPUS_ALL_REGIONS"):
        bench.provider.create(plan)
    assert bench.zones_asked() == [A]


def test_no_quota_of_a_region_skips_its_other_zones(bench: Bench) -> None:
    spec = bench.spec()
    plan = bench.provider.plan(spec)
    bench.emulator.set_quota("NVIDIA_T4_GPUS", 1, region="us-central1")
    nodes = bench.provider.create(plan, on_progress=bench.say)
    assert {node.id.partition("/")[0] for node in nodes} == {W}
    assert bench.zones_asked() == [A, W]
    assert any(name == B and step.startswith("no quota") for name, step in bench.said)
    bench.provider.destroy(spec.name)


def test_an_operation_that_fails_although_its_vms_are_there_leaves_none(bench: Bench) -> None:
    error = {"code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "scripted"}
    bench.fail({"operation_error": error, "effect": True}, method=BULK_INSERT, zone=A)
    spec = bench.spec()
    bench.create(spec)
    assert {vm["zone"].rpartition("/")[2] for vm in bench.emulator.state.instances()} == {B}
    bench.provider.destroy(spec.name)


@pytest.mark.usefixtures("soon")
def test_a_service_account_that_was_just_made_is_waited_for(bench: Bench) -> None:
    missing = f"The resource '{NEW_ACCOUNT}' of type 'serviceAccount' was not found."
    error = {"code": "EXTERNAL_RESOURCE_NOT_FOUND", "message": missing}
    bench.fail({"operation_error": error}, method=BULK_INSERT, times=2)
    spec = bench.spec()
    bench.create(spec, bench.another(service_account=NEW_ACCOUNT))
    assert set(bench.zones_asked()) == {A}
    assert len(bench.zones_asked()) >= 2
    again = "EXTERNAL_RESOURCE_NOT_FOUND: The resource 'nodes@test-project.iam.gserviceaccount.com' of type "
    assert (A, f"{again}'serviceAccount' was not found.; again in a moment") in bench.said
    assert bench.provider.destroy(spec.name) == []


@pytest.mark.parametrize("action", [{"reset": "before"}, {"reset": "after"}, {"status": 503}], ids=str)
@pytest.mark.parametrize("method", [BULK_INSERT, "compute.firewalls.insert", "compute.zoneOperations.wait", DELETE])
def test_passing_trouble_makes_nothing_twice(bench: Bench, action: dict[str, Any], method: str) -> None:
    bench.fail(action, method=method, times=2)
    spec = bench.spec()
    bench.wait(bench.create(spec))
    assert bench.zones_asked() == [A]
    assert len(bench.emulator.state.instances()) == 2
    assert bench.provider.destroy(spec.name) == []
    kinds = Counter(operation["operationType"] for operation in bench.emulator.state.all_operations())
    assert kinds["bulkInsert"] == 1


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("method", [BULK_INSERT, "compute.firewalls.insert"])
def test_no_permission_is_exit_code_3_and_leaves_nothing(bench: Bench, status: int, method: str) -> None:
    bench.fail({"status": status}, method=method, times=None)
    with pytest.raises(CredentialsError):
        bench.create(bench.spec())
    assert bench.zones_asked() == [A]


def test_no_answer_to_a_bulk_insert_that_had_its_effect_leaves_nothing(bench: Bench) -> None:
    bench.retry_seconds = 0.5
    bench.fail({"reset": "after"}, method=BULK_INSERT, times=None)
    with pytest.raises(NodeError):
        bench.create(bench.spec())
    assert Counter(operation["operationType"] for operation in bench.emulator.state.all_operations())["bulkInsert"] == 1


def test_the_same_name_in_another_zone_at_the_same_moment_is_noticed(bench: Bench) -> None:
    spec = bench.spec()
    plan = bench.provider.plan(spec)
    bench.create(dataclasses.replace(spec, id=secrets.token_hex(3)), bench.another(zones=[B]))
    with pytest.raises(UsageError, match="same moment"):
        bench.provider.create(plan)
    assert {vm["zone"].rpartition("/")[2] for vm in bench.emulator.state.instances()} == {B}
    bench.provider.destroy(spec.name)


@pytest.mark.parametrize("delays", [pytest.param(Delays(start=0.5), marks=pytest.mark.nightly), Delays(create=0.5)])
@pytest.mark.parametrize("moment", ["request", "operation", "vm"])
def test_ctrl_c_waits_for_what_is_under_way_and_deletes_it(bench: Bench, moment: str) -> None:
    world, faults = bench.emulator.state, bench.emulator.faults
    plan = bench.provider.plan(bench.spec())
    watcher = interrupt_when(
        {"request": lambda: faults.plain()["held"], "operation": world.all_operations, "vm": world.instances}[moment]
    )

    def release() -> None:
        watcher.join()
        time.sleep(0.8)
        faults.release()

    if moment == "request":
        bench.fail({"hold": "after"}, method=BULK_INSERT)
        threading.Thread(target=release).start()
    with pytest.raises(KeyboardInterrupt):
        bench.provider.create(plan)
    watcher.join()
    assert bench.left == []
    assert all(operation["status"] == "DONE" for operation in world.all_operations())


@pytest.mark.parametrize("delays", [Delays(start=0.7), Delays(create=0.7)])
def test_down_right_after_a_killed_up_waits_for_its_vms_from_any_laptop(bench: Bench) -> None:
    spec = bench.spec()
    plan = bench.provider.plan(spec)
    bench.client().bulk_insert(A, plan.bodies(A)[0], request_id(spec.name))
    found = bench.another().cluster(spec.name)
    assert found is not None
    # On a busy machine the VMs may be there already.
    assert found.nodes or any("bulkInsert" in each for each in found.other_objects)
    assert bench.another().destroy(spec.name) == []
    assert all(operation["status"] == "DONE" for operation in bench.emulator.state.all_operations())


@pytest.mark.parametrize("delays", [Delays(start=0.7)])
def test_down_waits_for_a_firewall_rule_that_is_still_being_made(bench: Bench) -> None:
    spec = bench.spec()
    body = bench.provider.plan(spec).requests[0].body
    bench.client().insert_firewall(body, request_id(spec.name))
    assert bench.another().destroy(spec.name) == []


def test_under_lists_that_are_late_a_cluster_comes_up_and_goes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdcloud.providers.gce.ops.ready.LIST_SECONDS", 0.05)
    bench.emulator.delay_lists(2)
    spec = bench.spec()
    nodes = bench.create(spec)
    assert [node.index for node in bench.wait(nodes)] == [0, 1]
    assert bench.provider.destroy(spec.name) == []
    assert bench.left == []
    bench.emulator.delay_lists(0)
    assert bench.provider.cluster(spec.name) is None


def test_down_from_another_laptop_finds_vms_that_no_list_shows_by_their_disks(bench: Bench) -> None:
    bench.emulator.delay_lists(3600)
    spec = bench.spec()
    bench.create(spec)
    # Another laptop knows neither names nor zones.
    assert bench.another().destroy(spec.name) == []
    assert bench.left == []


def test_a_vm_that_vanishes_from_the_lists_before_its_deletion_is_not_taken_for_gone(bench: Bench) -> None:
    spec = bench.spec()
    bench.create(spec)
    bench.emulator.faults.add({"hold": "before"}, method="compute.instances.delete", instance=spec.node_name(1))
    left: list[object] = []
    down = threading.Thread(target=lambda: left.extend(bench.provider.destroy(spec.name)))
    down.start()
    assert bench.emulator.faults.wait_held()
    bench.emulator.delay_lists(3600)
    bench.emulator.faults.release()
    down.join(timeout=300)
    assert left == []
    assert bench.left == []


def test_what_a_failed_create_has_made_is_deleted_although_no_list_shows_it(bench: Bench) -> None:
    spec = bench.spec()
    bench.emulator.delay_lists(3600)
    bench.fail({"operation_error": {"code": "INTERNAL_ERROR"}, "effect": True}, method=BULK_INSERT, times=None)
    with pytest.raises(NodeError):
        bench.create(spec)
    assert bench.left == []


def test_what_a_node_writes_is_not_believed_to_be_well_formed(bench: Bench) -> None:
    spec = bench.spec(nodes=1)
    bench.fail({"hang_ready": True}, instance=spec.node_name(0))
    nodes = bench.create(spec)
    for text in ("no json", "[]", '{"status": "ready"}', '{"status": "pulling", "percent": "x"}'):
        bench.emulator.write_guest_attribute(A, spec.node_name(0), "hvdcloud", "status", text)
        with pytest.raises(NodeError, match="did not come up in time"):
            bench.wait(nodes, seconds=0.3)
    bench.provider.destroy(spec.name)


@pytest.mark.parametrize("says", [["warning"], ["list"], ["warning", "list"]])
def test_a_zone_that_does_not_answer_is_never_taken_for_empty(bench: Bench, says: list[str]) -> None:
    spec = bench.spec()
    bench.create(spec)
    bench.emulator.set_unreachable(A, True, says=says)
    with pytest.raises(UnseenError, match=A) as caught:
        bench.provider.cluster("other")
    assert caught.value.code == TeardownError.code
    assert bench.provider.list().unseen == (f"zone {A}",)
    left = bench.provider.destroy(spec.name)
    assert f"zone {A}" in [each.object for each in left]
    assert all(each.delete_with for each in left)
    assert len(bench.emulator.state.instances()) == 2
    bench.emulator.set_unreachable(A, False)
    assert bench.provider.destroy(spec.name) == []


def test_a_zone_that_stops_answering_during_destroy_leaves_its_vms_unproven(bench: Bench) -> None:
    spec = bench.spec()
    bench.create(spec)
    bench.fail({"delay": 0.3}, method=DELETE, times=None)
    timer = threading.Timer(0.2, lambda: bench.emulator.set_unreachable(A, True))
    timer.start()
    left = bench.provider.destroy(spec.name)
    objects = [each.object for each in left]
    assert f"zone {A}" in objects
    assert f"VM {A}/{spec.node_name(0)}" in objects
    bench.emulator.set_unreachable(A, False)
    assert bench.provider.destroy(spec.name) == []


@pytest.mark.parametrize(
    "action",
    [
        *({"status": status, "message": "scripted"} for status in (403, 500)),
        *(pytest.param({"status": status, "message": "scripted"}, marks=pytest.mark.nightly) for status in (400, 401)),
        {"operation_error": {"code": "RESOURCE_IN_USE_BY_X", "message": "scripted"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", [DELETE, "compute.firewalls.delete"])
def test_what_cannot_be_deleted_is_left_over_with_a_reason_and_a_command(
    bench: Bench, action: dict[str, Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hvdcloud.providers.gce.ops.delete.ATTEMPTS", 1)
    bench.retry_seconds = 0.5
    spec = bench.spec(nodes=1)
    bench.create(spec)
    bench.fail(action, method=method, times=None)
    left = bench.provider.destroy(spec.name)
    assert left
    for each in left:
        kind, name = each.object.split()
        assert kind == ("VM" if method == DELETE else "firewall")
        assert "scripted" in each.reason
        assert each.delete_with.startswith("gcloud compute ")
        assert name.rpartition("/")[2] in each.delete_with
        assert "--project test-project" in each.delete_with
    bench.emulator.faults.clear()
    assert bench.provider.destroy(spec.name) == []


@pytest.mark.parametrize("status", [pytest.param(401, marks=pytest.mark.nightly), 403, 500])
@pytest.mark.parametrize(
    "method", ["compute.instances.aggregatedList", "compute.disks.aggregatedList", "compute.firewalls.list"]
)
def test_a_list_that_is_refused_is_left_over_and_the_rest_is_deleted(bench: Bench, status: int, method: str) -> None:
    bench.retry_seconds = 0.5
    spec = bench.spec(nodes=1)
    bench.create(spec)
    bench.fail({"status": status}, method=method, times=None)
    if method == "compute.instances.aggregatedList":
        with pytest.raises(HvdcloudError):
            bench.provider.cluster(spec.name)
        with pytest.raises(HvdcloudError):
            bench.provider.list()
    else:
        found = bench.provider.cluster(spec.name)
        assert found is not None
        assert found.nodes
        assert [place for place in found.unseen if str(status) in place]
        assert bench.provider.list().unseen == found.unseen
        with pytest.raises(UnseenError, match=str(status)):
            bench.provider.cluster("other")
    left = bench.provider.destroy(spec.name)
    assert left
    assert all("cannot be listed" in each.reason for each in left)
    kinds = Counter(link.split("/")[-2] for link in bench.left)
    assert kinds["firewalls"] == (2 if method == "compute.firewalls.list" else 0)
    assert kinds["instances"] == (1 if method == "compute.instances.aggregatedList" else 0)
    bench.emulator.faults.clear()
    assert bench.provider.destroy(spec.name) == []


def test_a_deletion_whose_operation_fails_is_tried_again(bench: Bench) -> None:
    spec = bench.spec(nodes=1)
    bench.create(spec)
    bench.fail({"operation_error": {"code": "RESOURCE_NOT_READY", "message": "scripted"}}, method=DELETE)
    assert bench.provider.destroy(spec.name) == []
    assert bench.calls()[DELETE] == 2


def test_a_disk_that_lost_its_vm_shows_and_is_deleted(bench: Bench) -> None:
    spec = bench.spec(nodes=1)
    bench.create(spec)
    with bench.emulator.state.lock:
        vm = bench.emulator.state.vm(A, spec.node_name(0))
        vm.update(disks=[{**disk, "autoDelete": False} for disk in vm.resource["disks"]])
    client = bench.client()
    operation = client.delete("Instances", "12345678-1234-4234-8234-123456789012", zone=A, instance=spec.node_name(0))
    assert operation is not None
    client.wait(operation, deadline=time.monotonic() + 10)
    found = bench.provider.cluster(spec.name)
    assert found is not None
    assert f"disk {A}/{spec.node_name(0)}" in found.other_objects
    assert bench.provider.destroy(spec.name) == []
