"""The loop that waits for the nodes, against a clock that only counts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from hvdcloud.errors import CredentialsError, NodeError
from hvdcloud.providers.base import ignore_progress
from hvdcloud.providers.gce.api.client import Aggregated, ComputeClient
from hvdcloud.providers.gce.ops import ready
from hvdcloud.providers.gce.ops.ready import Boots
from hvdcloud.providers.gce.resource_mapper import ResourceMapper, Way

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
    mapper = ResourceMapper(project="p", way=Way.EXTERNAL)
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


BUCKET = [{"key": "hvdcloud-bucket", "value": "gs://lab/runs"}]
NODES = "hvdcloud@p.iam.gserviceaccount.com"


class Refused(Client):
    """VMs that may not use their bucket, and say something else of it."""

    said: Mapping[str, str] = {
        "status": "failed",
        "step": "bucket",
        "error": "403 in gs://evil; rm -rf ~",
        "refused": "create",
    }
    metadata = BUCKET

    def guest_attributes(self, zone: str, names: Sequence[str]) -> dict[str, dict[str, str] | None]:
        return {name: {"status": json.dumps(self.said)} for name in names}

    def serial_output(self, zone: str, name: str, *, start: int = 0) -> str:
        return ""

    def instances_by_name(self, zone: str, names: Iterable[str]) -> list[dict[str, Any]]:
        return [{**self.made[0], "serviceAccounts": [{"email": NODES}], "metadata": {"items": self.metadata}}]


def test_a_node_that_may_not_use_its_bucket_is_a_matter_of_rights(pauses: list[float]) -> None:
    with pytest.raises(CredentialsError) as refused:
        wait(Refused(2, questions=0))
    assert refused.value.message == f"{NODES}, which node digits-0 runs as, may not write objects to gs://lab"
    command = f"gcloud storage buckets add-iam-policy-binding gs://lab --member=serviceAccount:{NODES} --role="
    assert refused.value.hint.count(command) == 3
    assert "403 in gs://evil" in refused.value.details
    assert "evil" not in refused.value.hint


@pytest.mark.parametrize(
    ("image", "hint"),
    [
        (
            "us-east1-docker.pkg.dev/lab/images/digits@sha256:00",
            "gcloud artifacts repositories add-iam-policy-binding images --location=us-east1 --project=lab "
            f"--member=serviceAccount:{NODES} --role=roles/artifactregistry.reader; then hvdcloud up again",
        ),
        ("127.0.0.1:5000/digits@sha256:00", "fix the cause, then hvdcloud up again"),
    ],
)
def test_a_node_that_may_not_pull_its_image_names_what_lets_it(pauses: list[float], image: str, hint: str) -> None:
    client = Refused(2, questions=0)
    client.said = {"status": "failed", "step": "pull", "error": "denied: Permission denied"}
    client.metadata = [{"key": "hvdcloud-image", "value": image}]
    with pytest.raises(NodeError, match="failed at step pull; it says: denied: Permission denied") as refused:
        wait(client)
    assert refused.value.hint == hint
