"""A node that deletes VMs of its cluster by itself, in front of the emulated Compute API and its IAM."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from hvdcloud.config.gce import GceConfig
from hvdcloud.config.model import LimitsConfig
from hvdcloud.node.vms.compute import Compute, RefusedError
from hvdcloud.providers.gce.plan.request import bulk_insert_bodies
from hvdcloud.providers.gce.settings import settings_of
from tests.standins.compute import Delays, Emulator
from tests.standins.metadata.guest_attributes import identity_of_vm
from tests.support.cloud import NODES_ACCOUNT
from tests.support.compute_clients import ZONE, Plain, until
from tests.support.gce_bench import DELETE
from tests.support.gce_requests import SPEC
from tests.support.http_server import Asked, Reply, answering


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    with Emulator(delays=Delays(start=0.005, create=0.02, delete=0.02, other=0.01)) as emulator:
        yield emulator


@pytest.fixture
def node(emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Of three VMs this one is `vm-0`, by its metadata server."""

    with Plain(emulator) as plain:
        plain.up("vm-0", "vm-1", "vm-2")
    with answering(identity_of_vm(emulator, account=NODES_ACCOUNT, zone=ZONE)) as server:
        file = tmp_path / "var/lib/hvdcloud/node.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"name": "vm-0", "metadata": server, "compute_endpoint": emulator.url}))
        monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
        yield file


def gone(emulator: Emulator) -> bool:
    return not emulator.state.instances() and not emulator.state.all_disks()


def request_ids(emulator: Emulator) -> dict[str, set[str]]:
    """Of the deletions that were asked for, by VM."""
    found: dict[str, set[str]] = {}
    for entry in emulator.log.entries():
        if entry.method == DELETE:
            path, _, query = entry.target.partition("?requestId=")
            found.setdefault(path.rpartition("/")[2], set()).add(query)
    return found


def test_vms_are_deleted_by_their_own_service_account_where_it_may(emulator: Emulator, node: Path) -> None:
    emulator.access.allow(NODES_ACCOUNT, DELETE, resource="projects/test-project/zones/*/instances/vm-*")
    assert Compute().delete_vms(["vm-1", "vm-2"]) == {}
    assert Compute().delete_vms(["vm-0"]) == {}
    until(lambda: gone(emulator))
    assert Compute().delete_vms(["vm-0", "vm-1"]) == {}, "gone already"
    assert Compute().delete_vms([]) == {}


def test_a_missing_permission_is_reported_at_once_by_name(emulator: Emulator, node: Path) -> None:
    emulator.access.allow(NODES_ACCOUNT, DELETE, resource="*/instances/vm-1")
    refused = Compute().delete_vms(["vm-1", "vm-2", "never-was"])
    where = f"projects/test-project/zones/{ZONE}/instances"
    assert refused == {
        name: f"403 forbidden: Required '{DELETE}' permission for '{where}/{name}'" for name in ("vm-2", "never-was")
    }
    asked = [entry for entry in emulator.log.entries() if entry.method == DELETE]
    assert len(asked) == 3


def test_a_node_whose_token_is_narrow_can_ask_compute_engine_for_nothing_whatever_its_account_may(
    emulator: Emulator, node: Path
) -> None:
    emulator.access.allow(NODES_ACCOUNT, "*")
    made = settings_of(
        GceConfig(service_account="default"), LimitsConfig(), project="test-project", ssh_source="10.0.0.0/8"
    )
    [body] = bulk_insert_bodies(SPEC, made, zone=ZONE, vm_image="projects/p/global/images/i")
    [account] = body["instanceProperties"]["serviceAccounts"]
    narrow = identity_of_vm(emulator, account=NODES_ACCOUNT, zone=ZONE, scopes=account["scopes"])
    with answering(narrow) as server:
        node.write_text(json.dumps({**json.loads(node.read_text()), "metadata": server}))
        refused = Compute().delete_vms(["vm-1"])
        assert refused == {"vm-1": "403 insufficientPermissions: Request had insufficient authentication scopes."}
        with pytest.raises(RefusedError, match="insufficient authentication scopes"):
            Compute().call("POST", "instances/bulkInsert", body=body, deadline=time.monotonic() + 5)
    assert {vm["name"] for vm in emulator.state.instances()} == {"vm-0", "vm-1", "vm-2"}


def test_an_api_that_falters_is_asked_again_with_the_same_request_id(emulator: Emulator, node: Path) -> None:
    emulator.access.allow(NODES_ACCOUNT, DELETE)
    emulator.faults.add({"status": 503}, method=DELETE, instance="vm-1")
    emulator.faults.add({"reset": "after"}, method=DELETE, instance="vm-1")
    emulator.faults.add({"status": 429, "reason": "rateLimitExceeded"}, method=DELETE, instance="vm-2")
    emulator.faults.add({"status": 403, "reason": "rateLimitExceeded"}, method=DELETE, instance="vm-2")
    assert Compute().delete_vms(["vm-1", "vm-2"]) == {}
    until(lambda: {vm["name"] for vm in emulator.state.instances()} == {"vm-0"})
    assert [rule["hits"] for rule in emulator.faults.plain()["rules"]] == [1, 1, 1, 1]
    ids = request_ids(emulator)
    assert {name: len(each) for name, each in ids.items()} == {"vm-1": 1, "vm-2": 1}
    assert all(UUID(each) for (each,) in ids.values())
    deletions = [each for each in emulator.state.all_operations() if each["operationType"] == "delete"]
    assert len(deletions) == 2


def test_a_token_that_has_expired_is_replaced(emulator: Emulator, node: Path) -> None:
    emulator.access.allow(NODES_ACCOUNT, DELETE)
    compute = Compute()
    assert compute.delete_vms(["vm-1"]) == {}
    emulator.keys.revoke()
    assert compute.delete_vms(["vm-2"]) == {}


def test_an_api_that_stays_away_is_given_up_in_time(emulator: Emulator, node: Path) -> None:
    emulator.access.allow(NODES_ACCOUNT, DELETE)
    emulator.faults.add({"status": 503, "message": "away"}, method=DELETE, times=None)
    assert Compute().delete_vms(["vm-1"], seconds=1.0) == {"vm-1": "503 backendError: away"}
    node.write_text(node.read_text().replace(emulator.url, "http://127.0.0.1:9"))
    (reason,) = Compute().delete_vms(["vm-1"], seconds=1.0).values()
    assert "refused" in reason


def test_a_vm_without_a_service_account_cannot_ask(emulator: Emulator, node: Path) -> None:
    facts = json.loads(node.read_text())

    def metadata(asked: Asked) -> Reply:
        known = "service-accounts" not in asked.path
        return Reply(b"projects/1/zones/z" if known else b"", status=200 if known else 404)

    with answering(metadata) as server:
        node.write_text(json.dumps({**facts, "metadata": server}))
        assert Compute().delete_vms(["vm-1"]) == {"vm-1": "the VM has no service account"}
