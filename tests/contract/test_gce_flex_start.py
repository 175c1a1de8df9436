"""Flex-start against the emulator: all nodes by one request that waits, and nothing left however it ends."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.gce import GpuConfig
from hvdcloud.errors import CapacityError, HvdcloudError, NodeError, UsageError
from hvdcloud.providers.gce.names import request_id
from hvdcloud.providers.gce.ops import flex_start
from hvdcloud.providers.gce.provider import GceProvider
from tests.standins.compute import Delays, Emulator
from tests.support.gce_bench import A, B, Bench, interrupt_when
from tests.support.harness import until

REQUEST = "compute.instanceGroupManagerResizeRequests.insert"
GROUP = "compute.instanceGroupManagers.insert"
TEMPLATE = "compute.instanceTemplates.insert"
QUOTA = "PREEMPTIBLE_NVIDIA_L4_GPUS"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(flex_start, "POLL_SECONDS", 0.02)
    with Emulator(delays=Delays(start=0.01, create=0.05, delete=0.02, other=0.02)) as emulator:
        for region in ("us-central1", "us-west1"):
            emulator.set_quota(QUOTA, 16, region=region)
            emulator.set_quota("NVIDIA_L4_GPUS", 0, region=region)
        yield (bench := Bench(emulator))
        emulator.faults.clear()
        assert bench.left == []


def laptop(bench: Bench, **changes: Any) -> GceProvider:
    """A provider as on any laptop with these settings."""
    l4 = {"machine_type": "g2-standard-8", "gpu": GpuConfig(type="nvidia-l4"), "provisioning": "flex-start"}
    return bench.another(**{"zones": [A, B], **l4, **changes})


def requests(bench: Bench) -> dict[str, str]:
    """Zone → state of the resize request there."""
    with bench.emulator.state.lock:
        groups = list(bench.emulator.state.all_groups())
        return {group.zone: request.resource["state"] for group in groups for request in group.requests.values()}


class Making:
    """A `create` on a thread of its own."""

    def __init__(self, bench: Bench, spec: ClusterSpec, provider: GceProvider | None = None) -> None:
        self.error: BaseException | None = None
        self.names: list[str] = []
        provider = provider or laptop(bench)
        plan = provider.plan(spec)

        def create() -> None:
            try:
                self.names = [node.id for node in provider.create(plan, on_progress=bench.say)]
            except HvdcloudError as error:
                self.error = error

        self.thread = threading.Thread(target=create, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.thread.join(timeout=300)
        assert not self.thread.is_alive()


def wait_for(bench: Bench, zone: str, state: str = "ACCEPTED") -> None:
    until(lambda: requests(bench).get(zone) == state, what=f"the request in {zone} to be {state}")


def test_all_nodes_start_at_once_when_there_is_room_and_down_deletes_what_made_them(bench: Bench) -> None:
    bench.fail({"queue": True}, method=REQUEST)
    spec = bench.spec()
    making = Making(bench, spec)
    wait_for(bench, A)
    until(lambda: (A, "flex-start request ACCEPTED, waits for 0 min") in bench.said, what="the wait to be shown")
    waiting = laptop(bench).cluster(spec.name)
    assert waiting is not None
    tag = f"hvdcloud-{spec.name}-{spec.id}"
    assert not waiting.whole
    assert not waiting.is_remnant
    assert waiting.id == spec.id
    assert waiting.expected_nodes == 2
    assert waiting.dollars_per_hour == 0
    assert f"request {A}/{tag} (flex-start, ACCEPTED, for 0 min)" in waiting.other_objects
    assert {f"group {A}/{tag}", f"template {tag}"} <= set(waiting.other_objects)
    bench.emulator.grant()
    making.end()
    assert making.error is None
    steps = ["making the template", "making the group", "asking for 2 VMs", "created"]
    assert [step for _, step in bench.said if "waits" not in step] == steps
    assert making.names == [f"{A}/{spec.node_name(0)}", f"{A}/{spec.node_name(1)}"]
    (found,) = laptop(bench).list().clusters
    assert found.whole
    assert found.ends is not None
    vm = bench.emulator.state.vm(A, spec.node_name(1)).resource
    assert vm["scheduling"]["provisioningModel"] == "FLEX_START"
    assert [cluster.name for cluster in laptop(bench).list().clusters] == [spec.name]
    with pytest.raises(UsageError, match="none comes later"):
        laptop(bench).plan_growth(dataclasses.replace(spec, nodes=3), [2])
    # A node that ends itself is not made again.
    assert laptop(bench).shrink(spec.name, [1]) == []
    assert [vm["name"] for vm in bench.emulator.state.instances()] == [spec.node_name(0)]
    # Of settings without flex-start: labels are the truth.
    assert bench.another().destroy(spec.name) == []
    assert bench.another().cluster(spec.name) is None


@pytest.mark.parametrize("fault", [{"stockout": {}}, {"operation_error": {"code": "ZONE_RESOURCE_POOL_EXHAUSTED"}}])
def test_the_next_zone_is_tried_where_one_refuses(bench: Bench, fault: dict[str, Any]) -> None:
    bench.fail(fault, method=REQUEST, zone=A)
    spec = bench.spec()
    nodes = bench.create(spec, laptop(bench))
    assert {node.id.partition("/")[0] for node in nodes} == {B}
    assert (A, "no capacity: ZONE_RESOURCE_POOL_EXHAUSTED") in bench.said
    assert laptop(bench).destroy(spec.name) == []


def test_a_request_that_fails_after_an_hour_is_asked_for_in_the_next_zone(bench: Bench) -> None:
    bench.fail({"queue": True}, method=REQUEST, times=2)
    spec = bench.spec()
    making = Making(bench, spec)
    wait_for(bench, A)
    bench.emulator.refuse()
    wait_for(bench, B)
    assert list(requests(bench)) == [B]
    bench.emulator.refuse("QUOTA_EXCEEDED", f"Quota '{QUOTA}' exceeded.  Limit: 1.0 in region us-central1.")
    making.end()
    assert isinstance(making.error, CapacityError)
    assert f"{A}: ZONE_RESOURCE_POOL_EXHAUSTED" in making.error.details


def test_a_wait_ends_with_the_request_deleted(bench: Bench) -> None:
    bench.fail({"queue": True}, method=REQUEST)
    with pytest.raises(CapacityError, match=f"no room in {A} within 0 min") as caught:
        bench.create(dataclasses.replace(bench.spec(), wait=0.3), laptop(bench))
    assert "--wait 6h" in caught.value.hint


def test_ctrl_c_cancels_the_request_and_leaves_nothing(bench: Bench) -> None:
    bench.fail({"queue": True}, method=REQUEST)
    interrupted = interrupt_when(lambda: requests(bench).get(A) == "ACCEPTED")
    with pytest.raises(KeyboardInterrupt):
        bench.create(bench.spec(), laptop(bench))
    interrupted.join()
    assert bench.calls()["compute.instanceGroupManagerResizeRequests.cancel"] == 1
    assert bench.calls()["compute.instances.delete"] == 0
    assert bench.left == []


def lose(bench: Bench, spec: ClusterSpec, *indices: int) -> None:
    """Of the VMs in zone A, these are gone at once, by nobody of ours."""
    client = bench.client()
    for index in indices:
        client.delete("Instances", request_id("others"), zone=A, instance=spec.node_name(index))
    left = spec.nodes - len(indices)
    until(lambda: len(bench.emulator.state.instances()) == left, what="the VMs to be gone")


def test_when_half_of_the_vms_are_gone_later_the_others_are_listed_and_down_leaves_nothing(bench: Bench) -> None:
    provider, spec = laptop(bench, zones=[A]), bench.spec(nodes=4)
    bench.create(spec, provider)
    lose(bench, spec, 0, 2)
    # The group does not make them again.
    assert requests(bench) == {A: "SUCCEEDED"}
    (found,) = bench.another().list().clusters
    assert [node.name for node in found.nodes] == [spec.node_name(1), spec.node_name(3)]
    assert (found.name, found.expected_nodes, found.whole) == (spec.name, 4, False)
    assert found.ends is not None
    assert f"group {A}/hvdcloud-{spec.name}-{spec.id}" in found.other_objects
    assert bench.another().destroy(spec.name) == []
    assert bench.left == []


def test_when_half_of_the_vms_are_gone_at_once_none_is_left(bench: Bench) -> None:
    provider, spec = laptop(bench, zones=[A]), bench.spec(nodes=4)
    bench.fail({"hold": "before"}, method="compute.instanceGroupManagerResizeRequests.list")
    making = Making(bench, spec, provider)
    wait_for(bench, A, "SUCCEEDED")
    lose(bench, spec, 0, 2)
    bench.emulator.faults.release()
    making.end()
    assert isinstance(making.error, HvdcloudError)
    assert "VM_MIN_COUNT_NOT_REACHED: 2 of 4 VMs exist after the operation" in making.error.details
    assert bench.left == []


def test_a_laptop_whose_network_is_gone_for_a_while_waits_on(bench: Bench) -> None:
    bench.retry_seconds = 0.1
    bench.fail({"queue": True}, method=REQUEST)
    making = Making(bench, spec := bench.spec())
    wait_for(bench, A)
    bench.fail({"reset": "before"}, method="compute.instanceGroupManagerResizeRequests.list", times=8)
    until(lambda: any("when it was last looked at" in step for _, step in bench.said), what="a look to fail")
    bench.emulator.grant()
    making.end()
    assert making.error is None
    assert laptop(bench).destroy(spec.name) == []


def test_down_from_another_laptop_ends_a_request_that_waits(bench: Bench) -> None:
    bench.fail({"queue": True}, method=REQUEST)
    making = Making(bench, spec := bench.spec())
    wait_for(bench, A)
    gone: list[str] = []
    assert bench.another().destroy(spec.name, on_progress=lambda progress: gone.append(progress.object)) == []
    tag = f"hvdcloud-{spec.name}-{spec.id}"
    # In whatever order: the `up` that is ended so deletes them as well.
    assert {f"group {A}/{tag}", f"template {tag}"} <= set(gone)
    making.end()
    assert isinstance(making.error, UsageError)
    assert "somebody else has ended it" in making.error.message


def queue(bench: Bench, provider: GceProvider, spec: ClusterSpec, *, requests: int) -> None:
    """Send the first of what makes a cluster, as a client that is killed then; nothing is waited for after the last."""
    plan, client = provider.plan(spec), bench.client()
    template, group, resize = plan.bodies(A)
    tag = template["name"]
    sends: list[Callable[[str], dict[str, Any]]] = [
        lambda asked: client.insert_template(template, asked),
        lambda asked: client.insert_group(A, group, asked),
        lambda asked: client.insert_resize_request(A, tag, resize, asked),
    ]
    for number, send in enumerate(sends[:requests], start=1):
        operation = send(request_id(spec.name, spec.id))
        if number < requests:
            client.wait(operation, deadline=float("inf"))


@pytest.mark.parametrize("granted", [False, True])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_down_leaves_nothing_of_an_up_that_was_killed_at_this_request(bench: Bench, number: int, granted: bool) -> None:
    if not granted:
        bench.fail({"queue": True}, method=REQUEST)
    spec = bench.spec()
    queue(bench, laptop(bench), spec, requests=number)
    (found,) = bench.another().list().clusters
    assert found.id == spec.id
    assert bench.another().destroy(spec.name) == []
    assert bench.left == []
    assert all(operation["status"] == "DONE" for operation in bench.emulator.state.all_operations())


@pytest.mark.parametrize("method", [TEMPLATE, GROUP, REQUEST])
@pytest.mark.parametrize(
    "action",
    [{"reset": "after"}, {"status": 503}, pytest.param({"reset": "before"}, marks=pytest.mark.nightly)],
    ids=str,
)
def test_passing_trouble_asks_for_nothing_twice(bench: Bench, method: str, action: dict[str, Any]) -> None:
    bench.fail(action, method=method, times=2)
    spec = bench.spec()
    bench.create(spec, laptop(bench))
    assert list(requests(bench)) == [A]
    assert laptop(bench).destroy(spec.name) == []


@pytest.mark.parametrize("method", [TEMPLATE, GROUP, REQUEST])
def test_no_answer_to_a_request_that_had_its_effect_leaves_nothing(bench: Bench, method: str) -> None:
    bench.retry_seconds = 0.3
    bench.fail({"reset": "after"}, method=method, times=None)
    with pytest.raises(NodeError):
        bench.create(bench.spec(), laptop(bench))
    assert bench.left == []


def test_a_group_that_may_not_be_deleted_keeps_no_vm_alive(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdcloud.providers.gce.ops.delete.ATTEMPTS", 1)
    spec = bench.spec()
    bench.create(spec, laptop(bench))
    bench.fail({"status": 403}, method="compute.instanceGroupManagers.delete", times=None)
    left = {each.object.partition(" ")[0]: each.delete_with for each in laptop(bench).destroy(spec.name)}
    tag = f"hvdcloud-{spec.name}-{spec.id}"
    assert left == {
        "group": f"gcloud compute instance-groups managed delete {tag} --zone {A} --project test-project --quiet",
        "template": f"gcloud compute instance-templates delete {tag} --project test-project --quiet",
    }
    assert bench.emulator.state.instances() == []
    bench.emulator.faults.clear()
    assert laptop(bench).destroy(spec.name) == []


def test_what_a_preemptible_quota_or_a_machine_type_does_not_allow_is_asked_for_by_nobody(bench: Bench) -> None:
    spec = bench.spec()
    bench.emulator.set_quota(QUOTA, 1, region="us-central1")
    with pytest.raises(CapacityError, match=f"{QUOTA} 2 needed"):
        laptop(bench).plan(spec)
    with pytest.raises(UsageError, match="not for n1-standard-8"):
        laptop(bench, machine_type="n1-standard-8", gpu=GpuConfig(type="nvidia-tesla-t4")).plan(spec)
    assert bench.emulator.state.all_operations() == []


def test_quota_that_is_in_use_is_waited_for(bench: Bench) -> None:
    bench.emulator.set_quota(QUOTA, 2, region="us-central1")
    first, second = bench.spec(), bench.spec()
    bench.create(first, laptop(bench))
    making = Making(bench, second)
    step = f"flex-start request ACCEPTED, waits for 0 min, last answer {QUOTA}"
    until(lambda: (A, step) in bench.said, what="the quota to be named")
    assert laptop(bench).destroy(first.name) == []
    bench.emulator.grant()
    making.end()
    assert making.error is None
    assert laptop(bench).destroy(second.name) == []
