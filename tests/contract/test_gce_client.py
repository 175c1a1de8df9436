"""Our client of the Compute API against a server that keeps the API's rules."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.google import http
from hvdcloud.google.errors import operation_errors
from hvdcloud.providers.gce.api.client import ComputeClient, connect_client
from hvdcloud.providers.gce.names import belongs_to, request_id
from hvdcloud.providers.gce.plan.request import bulk_insert_bodies
from tests.standins.compute import Emulator
from tests.support import gce_samples
from tests.support.gce_samples import SPEC

ZONE = "us-central1-a"
SETTINGS = replace(gce_samples.SETTINGS, project="test-project")


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(page_size=100) as emulator:
        for metric in ("NVIDIA_T4_GPUS", "CPUS", "SSD_TOTAL_GB", "IN_USE_ADDRESSES", "INSTANCES"):
            emulator.set_quota(metric, 100_000, region="us-central1")
        for metric in ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS"):
            emulator.set_quota(metric, 100_000)
        yield emulator


@pytest.fixture
def client(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ComputeClient:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(emulator.credentials_file(tmp_path / "key.json")))
    monkeypatch.setattr(http, "RETRY_BASE_SECONDS", 0.01)
    return connect_client(project=None, endpoint=emulator.url)


def soon() -> float:
    return time.monotonic() + 30


def body(client: ComputeClient, nodes: int = 2) -> dict[str, Any]:
    found = client.image_from_family("cos-cloud", "cos-125-lts")["selfLink"]
    image = found[found.index("projects/") :]
    [body] = bulk_insert_bodies(replace(SPEC, nodes=nodes), SETTINGS, zone=ZONE, vm_image=image)
    return body


def create(client: ComputeClient, nodes: int = 2) -> dict[str, Any]:
    operation = client.bulk_insert(ZONE, body(client, nodes), request_id(SPEC.name))
    done = client.wait(operation, deadline=soon())
    assert operation_errors(done) == []
    return done


def test_the_project_comes_from_the_credentials(client: ComputeClient) -> None:
    assert client.project == "test-project"
    assert client.get_project()["name"] == "test-project"


def test_a_cluster_is_made_seen_and_deleted(client: ComputeClient, emulator: Emulator) -> None:
    done = create(client)

    assert belongs_to(done["clientOperationId"], "digits")
    group = client.operation_group(ZONE, done["operationGroupId"])
    assert len([each for each in group if each["operationType"] == "insert"]) == 2
    assert sorted(vm["name"] for vm in client.instances("digits").items) == ["digits-0", "digits-1"]
    assert sorted(vm["name"] for vm in client.instances_in(ZONE, "digits", "abcdef")) == ["digits-0", "digits-1"]
    assert [vm["name"] for vm in client.instances_named(["digits-1", "else"]).items] == ["digits-1"]
    assert len(client.disks(None).items) == 2
    assert client.instances("other").items == []
    assert client.instances_in(ZONE, "digits", "fedcba") == []

    deletions = [client.delete_instance(ZONE, name, str(uuid.uuid4())) for name in ("digits-0", "digits-1")]
    for deletion in deletions:
        assert deletion is not None
        assert operation_errors(client.wait(deletion, deadline=soon())) == []
    assert client.delete_instance(ZONE, "digits-0", str(uuid.uuid4())) is None
    assert emulator.state.left() == []


def test_statuses_arrive_and_a_vm_that_is_gone_has_none(client: ComputeClient, emulator: Emulator) -> None:
    emulator.faults.add({"hang_ready": True}, instance="digits-1")
    create(client)
    found: dict[str, dict[str, str]] = {}
    until(lambda: (found.update(client.guest_attributes(ZONE, ["digits-0"])), "ready" in str(found["digits-0"]))[1])
    assert json.loads(found["digits-0"]["status"])["host_key"].startswith("ssh-ed25519 ")
    found = client.guest_attributes(ZONE, ["digits-0", "digits-1", "digits-7"])
    assert found["digits-1"] == {}
    assert "digits-7" not in found
    assert "Booting" in client.serial_output(ZONE, "digits-0")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_breaks_makes_nothing_twice(client: ComputeClient, emulator: Emulator, when: str) -> None:
    emulator.faults.add({"reset": when}, method="compute.instances.bulkInsert", times=2)
    create(client)
    assert len(emulator.state.instances()) == 2
    assert len([entry for entry in emulator.log.entries() if "bulkInsert" in entry.target]) == 3


@pytest.mark.parametrize("says", [("warning",), ("list",), ("warning", "list")])
def test_a_zone_that_cannot_be_seen_is_named(client: ComputeClient, emulator: Emulator, says: tuple[str, ...]) -> None:
    create(client)
    emulator.set_unreachable(ZONE, True, says=says)
    found = client.instances("digits")
    assert (found.items, found.unseen) == ([], (f"zone {ZONE}",))
    assert client.disks(None).unseen == (f"zone {ZONE}",)


def test_operations_in_flight_are_seen_until_they_are_done(client: ComputeClient, emulator: Emulator) -> None:
    emulator.faults.add({"slow": 1.0}, method="compute.instances.bulkInsert")
    operation = client.bulk_insert(ZONE, body(client), request_id("digits"))
    found = client.operations_in_flight().items
    assert [each for each in found if belongs_to(each.get("clientOperationId", ""), "digits")]
    client.wait(operation, deadline=soon())
    assert [each for each in client.operations_in_flight().items if each["name"] == operation["name"]] == []


def until(true: Callable[[], bool]) -> None:
    deadline = soon()
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
