"""The loop that waits for the nodes, against a clock that only counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from hvdcloud.cluster.model import Node
from hvdcloud.errors import NodeError
from hvdcloud.providers.base import ignore_progress
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.ops import ready
from hvdcloud.providers.gce.ops.ready import Boots
from hvdcloud.providers.gce.resource_mapper import ResourceMapper

ZONE = "us-central1-a"
READY = {"status": json.dumps({"status": "ready", "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + 43 * "A"})}


class Client(ComputeClient):
    """Two VMs that are ready, or say nothing."""

    def __init__(self, *, ready: bool) -> None:
        self.made = [{"name": f"digits-{index}", "status": "RUNNING", "zone": f"zones/{ZONE}"} for index in range(2)]
        self.listed = Aggregated(items=self.made)
        self.ready = ready

    def guest_attributes(self, zone: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        return {name: READY if self.ready else {} for name in names}

    def instances(self, cluster: str | None) -> Aggregated:
        return self.listed

    def serial_output(self, zone: str, name: str, start: int = 0) -> str:
        return "login: \n"

    def instances_by_name(self, zone: str, names: Iterable[str]) -> list[dict[str, Any]]:
        return []


class Clock:
    """It counts what is slept."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(ready, "time", clock)
    return clock


def wait(client: Client, clock: Clock) -> list[Node]:
    mapper = ResourceMapper(project="p", iap=False)
    nodes = [mapper.node(vm) for vm in client.made]
    deadline = clock.now + 1800
    return Boots(client, mapper, nodes, cluster="digits", deadline=deadline, on_progress=ignore_progress).wait()


def test_a_vm_that_no_list_has_any_more_is_gone_though_it_was_ready(clock: Clock) -> None:
    client = Client(ready=True)
    client.listed = Aggregated(items=client.made[:1])
    with pytest.raises(NodeError, match="node digits-1 is gone"):
        wait(client, clock)


def test_a_vm_in_a_place_that_does_not_answer_is_not_taken_for_gone(clock: Clock) -> None:
    client = Client(ready=True)
    client.listed = Aggregated(items=client.made[:1], unseen=(f"zone {ZONE}",))
    assert [node.name for node in wait(client, clock)] == ["digits-0", "digits-1"]


def test_a_vm_that_runs_and_says_nothing_ends_up_with_the_end_of_its_boot_log(clock: Clock) -> None:
    began = clock.now
    with pytest.raises(NodeError, match="digits-0 has run for 300 s and its startup script says nothing") as raised:
        wait(Client(ready=False), clock)
    assert "the end of digits-0's boot log:\nlogin:" in raised.value.details
    assert clock.now - began < 330
