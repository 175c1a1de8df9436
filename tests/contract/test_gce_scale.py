"""What hundreds of nodes cost in calls of the API; tests/bench/gce measures the seconds."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import pytest

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.gce import GceConfig, SshConfig
from hvdcloud.config.model import LimitsConfig
from hvdcloud.providers.gce.api.client import connect_client
from hvdcloud.providers.gce.provider import GceProvider
from hvdcloud.remote.keys import new_key_pair
from tests.standins.compute import Emulator

MANY = 256
DELETE = "compute.instances.delete"
GET = "compute.instances.get"
READ = "compute.instances.getGuestAttributes"


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    with Emulator() as emulator:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(emulator.credentials_file(tmp_path / "key.json")))
        monkeypatch.setenv("HVDCLOUD_GOOGLE_ENDPOINT", emulator.url)
        yield emulator


@dataclass
class Calls:
    """Of one cluster's life, by what they were made for."""

    before: Counter[str]
    create: Counter[str]
    wait: Counter[str]
    down: Counter[str]


def life(emulator: Emulator, folder: Path, *, nodes: int) -> Calls:
    """The provider's part of `up` and `down`."""
    spec = ClusterSpec(
        name=f"scale-{nodes}",
        id=secrets.token_hex(3),
        owner="tester",
        nodes=nodes,
        image=f"us-central1-docker.pkg.dev/test-project/hvdcloud/t@sha256:{'0' * 64}",
        bucket="gs://bucket/t",
        authorized_key=new_key_pair("test").public,
        created=datetime.now(timezone.utc),
    )
    provider = GceProvider(
        GceConfig(zones=["us-central1-a"], service_account="default", ssh=SshConfig(source="198.51.100.7/32")),
        LimitsConfig(),
        client=lambda: connect_client(project="test-project"),
    )

    def calls() -> Counter[str]:
        entries = emulator.log.entries()
        emulator.log.clear()
        return Counter(entry.method for entry in entries)

    emulator.log.clear()
    assert provider.cluster(spec.name) is None
    plan = provider.plan(spec)
    before = calls()
    created = provider.create(plan)
    create = calls()
    ready = provider.wait_ready(created, deadline=time.monotonic() + 120)
    assert len({node.host_key for node in ready}) == nodes
    wait = calls()
    assert provider.cluster(spec.name) is not None
    assert provider.destroy(spec.name) == []
    assert emulator.state.left() == []
    return Calls(before, create, wait, calls())


def test_up_and_down_of_256_nodes_cost_a_delete_for_each_and_little_else(emulator: Emulator, tmp_path: Path) -> None:
    one, many = (life(emulator, tmp_path, nodes=nodes) for nodes in (1, MANY))

    assert many.before == one.before
    # How often an operation is waited for depends on how long it takes.
    for calls in (one.create, many.create):
        assert calls["compute.zoneOperations.wait"] + calls["compute.globalOperations.wait"] <= 6
        del calls["compute.zoneOperations.wait"], calls["compute.globalOperations.wait"]
    assert many.create == one.create
    assert many.create["compute.instances.bulkInsert"] == 1
    assert set(many.wait) <= {READ, "compute.instances.aggregatedList"}
    assert MANY <= many.wait[READ] <= 3 * MANY
    # What a list does not show any more is asked for by name before it counts as gone.
    each = (DELETE, GET)
    assert [[calls.down[method] for method in each] for calls in (one, many)] == [[1, 1], [MANY, MANY]]
    rest = [sum(count for method, count in calls.down.items() if method not in each) for calls in (one, many)]
    assert rest[1] <= rest[0] + 20
