"""The loop that waits for the nodes, against a clock that only counts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from hvdcloud.errors import NodeError
from hvdcloud.providers.base import ignore_progress
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.ops import ready
from hvdcloud.providers.gce.ops.ready import Boots
from hvdcloud.providers.gce.resource_mapper import ResourceMapper

ZONE = "us-central1-a"
READY = {"status": json.dumps({"status": "ready", "host_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + 43 * "A"})}


class Client(ComputeClient):
    """VMs that are ready after this many questions."""

    def __init__(self, nodes: int, *, questions: int) -> None:
        self.made = [
            {"name": f"digits-{index}", "status": "RUNNING", "zone": f"zones/{ZONE}"} for index in range(nodes)
        ]
        self.listed = Aggregated(items=self.made)
        self.questions = questions
        self.asked: list[int] = []
        self.named: list[str] = []

    def guest_attributes(self, zone: str, names: Sequence[str]) -> dict[str, dict[str, str]]:
        self.asked.append(len(names))
        return {name: READY if len(self.asked) > self.questions else {} for name in names}

    def instances(self, cluster: str | None) -> Aggregated:
        return self.listed

    def instances_by_name(self, zone: str, names: Iterable[str]) -> list[dict[str, Any]]:
        self.named += names
        return []


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []

    class Clock:
        monotonic = staticmethod(time.monotonic)
        sleep = staticmethod(seconds.append)

    monkeypatch.setattr(ready, "time", Clock)
    return seconds


def wait(client: Client) -> list[Any]:
    mapper = ResourceMapper(project="p", iap=False)
    nodes = [mapper.node(vm) for vm in client.made]
    deadline = time.monotonic() + 60
    return Boots(client, mapper, nodes, cluster="digits", deadline=deadline, on_progress=ignore_progress).wait()


def test_a_vm_that_no_list_has_any_more_is_gone_though_it_was_ready(pauses: list[float]) -> None:
    client = Client(2, questions=0)
    client.listed = Aggregated(items=client.made[:1])
    with pytest.raises(NodeError, match="node digits-1 is gone"):
        wait(client)


def test_a_vm_in_a_place_that_does_not_answer_is_not_taken_for_gone(pauses: list[float]) -> None:
    client = Client(2, questions=0)
    client.listed = Aggregated(items=client.made[:1], unseen=(f"zone {ZONE}",))
    assert [node.name for node in wait(client)] == ["digits-0", "digits-1"]
