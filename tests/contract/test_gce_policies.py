"""What organizations forbid, and machines that are unlike others: each is named, got around where that is possible, and
leaves nothing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.model import NodeState
from hvdcloud.config.gce import SshConfig
from hvdcloud.errors import CredentialsError, UsageError
from hvdcloud.google.error_rules import Action
from hvdcloud.google.errors import ApiError, operation_errors
from hvdcloud.providers.gce.names import request_id
from tests.standins.compute import Emulator, Records
from tests.support.gce_bench import A, Bench, W

OS_LOGIN = "compute.requireOsLogin"
LOCATIONS = "gcp.resourceLocations"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Emulator(backing=Records()) as emulator:
        yield (bench := Bench(emulator, tmp_path))
        assert bench.left == []


@pytest.mark.parametrize("in_operation", [False, True], ids=["answer", "operation"])
def test_where_os_login_is_required_nodes_come_up_since_nothing_switches_it_off(
    bench: Bench, in_operation: bool
) -> None:
    bench.emulator.enforce(OS_LOGIN, in_operation=in_operation)
    spec = bench.spec()
    plan = bench.provider.plan(spec)
    assert [node.index for node in bench.wait(bench.create(spec))] == [0, 1]
    assert bench.zones_asked() == [A]
    assert bench.provider.destroy(spec.name) == []
    # With the item the same request is refused.
    body = plan.bodies(A)[0]
    body["instanceProperties"]["metadata"]["items"].append({"key": "enable-oslogin", "value": "FALSE"})
    assert f"Constraint constraints/{OS_LOGIN} violated for project 123456789012." in refusal(bench, body)


def refusal(bench: Bench, body: dict[str, Any]) -> str:
    """What is said of a request for VMs."""
    client = bench.client()
    try:
        operation = client.bulk_insert(A, body, request_id("t", secrets.token_hex(3)))
    except ApiError as error:
        return error.message
    ended = client.wait(operation, deadline=time.monotonic() + 20)
    return "; ".join(error.message for error in operation_errors(ended))


# --- what no other request would change -------------------------------------------------------------------------------


@pytest.mark.parametrize("in_operation", [False, True], ids=["answer", "operation"])
def test_a_region_that_is_not_allowed_is_left_for_the_next(bench: Bench, in_operation: bool) -> None:
    bench.emulator.enforce(LOCATIONS, allowed=["us-west1"], in_operation=in_operation)
    spec = bench.spec()
    nodes = bench.create(spec)
    assert {node.id.partition("/")[0] for node in nodes} == {W}
    assert bench.zones_asked() == [A, W]
    assert bench.provider.destroy(spec.name) == []


@pytest.mark.parametrize("in_operation", [False, True], ids=["answer", "operation"])
def test_external_addresses_that_are_forbidden_end_up_with_the_way_without_them(
    bench: Bench, in_operation: bool
) -> None:
    bench.emulator.enforce("compute.vmExternalIpAccess", in_operation=in_operation)
    with pytest.raises(CredentialsError, match=r"constraints/compute\.vmExternalIpAccess violated") as caught:
        bench.create(bench.spec())
    assert "gce.ssh.source: iap" in caught.value.hint
    assert bench.zones_asked() == [A]
    assert bench.left == []
    spec = bench.spec()
    bench.emulator.add_network("mine", {"us-central1": "10.10.0.0/20"})
    without = bench.another(ssh=SshConfig(source="iap"), network="mine", subnetwork="mine")
    assert len(bench.create(spec, without)) == 2
    assert bench.provider.destroy(spec.name) == []


def test_guest_attributes_that_are_forbidden_end_the_wait_at_once(bench: Bench) -> None:
    bench.emulator.enforce("compute.disableGuestAttributesAccess")
    spec = bench.spec()
    nodes = bench.create(spec)
    with pytest.raises(CredentialsError, match=r"constraints/compute\.disableGuestAttributesAccess violated") as caught:
        bench.wait(nodes, seconds=60)
    assert "gcloud org-policies describe compute.disableGuestAttributesAccess" in caught.value.hint
    assert bench.provider.destroy(spec.name) == []


# --- machines that are unlike others ----------------------------------------------------------------------------------


def test_an_a3_with_fewer_than_eight_gpus_is_made_as_a_spot_vm_only(bench: Bench) -> None:
    kind = {"machine_type": "a3-highgpu-2g", "gpu": None, "zones": ["us-central1-a"]}
    with pytest.raises(UsageError, match="a3-highgpu-2g is available as a Spot VM only"):
        bench.another(**kind).plan(bench.spec())
    bench.emulator.set_quota("PREEMPTIBLE_NVIDIA_H100_GPUS", 16, region="us-central1")
    spot, spec = bench.another(**kind, spot="all"), bench.spec()
    assert len(bench.create(spec, spot)) == 2
    assert spot.destroy(spec.name) == []
    body = spot.plan(spec).bodies(A)[0]
    on_demand = {**body["instanceProperties"]["scheduling"], "provisioningModel": "STANDARD"}
    body = {**body, "instanceProperties": {**body["instanceProperties"], "scheduling": on_demand}}
    with pytest.raises(ApiError, match="SPOT or FLEX_START") as caught:
        bench.client().bulk_insert(A, body, request_id(spec.name, spec.id))
    assert caught.value.action is Action.STOP


def test_a_vm_that_stopped_stays_until_down_and_its_disk_is_said_to_cost(bench: Bench) -> None:
    spec = bench.spec()
    nodes = bench.create(spec)
    bench.wait(nodes)
    bench.emulator.kill(A, spec.node_name(1))
    deadline = time.monotonic() + 10
    while (found := bench.provider.cluster(spec.name)) and found.nodes[1].state is not NodeState.STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert found is not None
    [stopped] = [vm for vm in bench.emulator.state.instances() if vm["status"] == "TERMINATED"]
    assert stopped["resourceStatus"] == {}
    assert not found.whole
    assert found.dollars_per_hour > 0
    assert bench.provider.destroy(spec.name) == []
