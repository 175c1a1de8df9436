"""What organizations forbid, and machines that are unlike others: each is named, got around where that is possible, and
leaves nothing."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

import pytest

from hvdcloud.config.gce import SshConfig
from hvdcloud.errors import CredentialsError
from hvdcloud.google.errors import ApiError, operation_errors
from hvdcloud.providers.gce.names import request_id
from tests.support.gce_bench import A, Bench, W

OS_LOGIN = "compute.requireOsLogin"
LOCATIONS = "gcp.resourceLocations"


@pytest.mark.parametrize("in_operation", [False, True], ids=["answer", "operation"])
def test_where_os_login_is_required_nodes_come_up_and_nothing_switches_it_off(bench: Bench, in_operation: bool) -> None:
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


def refusal(bench: Bench, body: Mapping[str, Any]) -> str:
    """What is said of a request for VMs."""
    client = bench.client()
    try:
        operation = client.bulk_insert(A, body, request_id("t", secrets.token_hex(3)))
    except ApiError as error:
        return error.message
    ended = client.wait(operation, deadline=time.monotonic() + 20)
    return "; ".join(error.message for error in operation_errors(ended))


@pytest.mark.parametrize("in_operation", [False, True], ids=["answer", "operation"])
def test_a_region_that_is_not_allowed_is_left_for_the_next(bench: Bench, in_operation: bool) -> None:
    bench.emulator.enforce(LOCATIONS, allowed=["us-west1"], in_operation=in_operation)
    spec = bench.spec()
    nodes = bench.create(spec)
    assert {node.id.partition("/")[0] for node in nodes} == {W}
    assert bench.zones_asked() == [A, W]
    assert bench.provider.destroy(spec.name) == []


@pytest.mark.parametrize("in_operation", [False, True], ids=["answer", "operation"])
def test_forbidden_external_addresses_end_up_with_the_way_without_them(bench: Bench, in_operation: bool) -> None:
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
