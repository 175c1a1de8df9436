"""What gcloud sends for the same cluster, recorded, against what hvdcloud sends.

Every difference is in a table with its reason; one that is not there fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.providers.gce.plan.request import bulk_insert_bodies, firewall_bodies
from tests.support.gce_requests import SPEC, settings
from tests.support.gcloud import Gcloud
from tests.support.http_server import Asked, Reply, answering

API = "https://www.googleapis.com/compute/v1"
ZONE = "us-central1-a"
TAG = "hvdcloud-digits-a1b2c3"
ABSENT = "absent"
Differences = dict[str, tuple[Any, Any, str]]
"""Field → what gcloud sends, what we send, and why."""

PARTIAL_URL = "wherever the API takes a URL, it takes a partial one"
DEFAULT = "gcloud sends the API's default"
COMMON: Differences = {
    "canIpForward": (False, ABSENT, DEFAULT),
    "reservationAffinity.consumeReservationType": (
        ABSENT,
        "NO_RESERVATION",
        "else a VM takes a place of whatever open reservation its project has",
    ),
    "disks[0].mode": ("READ_WRITE", ABSENT, DEFAULT),
    "disks[0].type": ("PERSISTENT", ABSENT, DEFAULT),
    "disks[0].initializeParams.sourceImage": (
        f"{API}/projects/cos-cloud/global/images/cos-125-19216-1-1",
        "projects/cos-cloud/global/images/cos-125-19216-1-1",
        PARTIAL_URL,
    ),
    **{
        f"disks[0].initializeParams.labels.{key}": (
            ABSENT,
            value,
            "a disk does not inherit its VM's labels, by which `down` finds it, and gcloud has no flag for them",
        )
        for key, value in SPEC.labels.items()
    },
}
DEFAULT_NETWORK: Differences = {
    "networkInterfaces[0].network": (
        f"{API}/projects/p/global/networks/default",
        "projects/p/global/networks/default",
        PARTIAL_URL,
    ),
    "networkInterfaces[0].accessConfigs[0].name": (
        "external-nat",
        "External NAT",
        "a name of the caller's choice; the second is that of the documentation's examples",
    ),
}
SUBNETWORK: Differences = {
    "networkInterfaces[0].subnetwork": (
        f"{API}/projects/p/regions/us-central1/subnetworks/hvdcloud",
        "projects/p/regions/us-central1/subnetworks/hvdcloud",
        PARTIAL_URL,
    ),
}
SPOT: Differences = {
    "scheduling.preemptible": (
        True,
        ABSENT,
        "the field of preemptible VMs, Spot VMs' forerunners; Google's own request for Spot VMs has provisioningModel "
        "alone (https://cloud.google.com/compute/docs/instances/create-use-spot#rest)",
    ),
}


class Recorder:
    """Keeps every POST with its body, and refuses it."""

    def __init__(self) -> None:
        self.url = ""
        self.posts: list[tuple[str, dict[str, Any]]] = []

    def answer(self, asked: Asked) -> Reply:
        if asked.method == "GET":
            return Reply({"name": "x"})
        body = asked.body.replace(self.url.encode(), b"https://www.googleapis.com")
        self.posts.append((asked.path, json.loads(body)))
        return Reply({"error": {"code": 400, "message": "recorded"}}, status=400)

    def recorded(self, done: Any) -> tuple[str, dict[str, Any]]:
        """Path and body of what a command has just sent."""
        assert "recorded" in done.stderr, done.stderr
        return self.posts.pop()


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    with answering(recorder.answer) as recorder.url:
        yield recorder


@pytest.fixture(scope="module")
def gcloud(recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    folder = tmp_path_factory.mktemp("gcloud")
    return Gcloud(folder, token="ya29.recorded", project="p", compute=f"{recorder.url}/compute/v1/")


def fields(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf with its place; metadata items by key, whose order means nothing."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "items" and where == "metadata":
                inner = {item["key"]: item["value"] for item in inner}
            yield from fields(inner, f"{where}.{key}".lstrip("."))
        if not value:
            yield where, {}
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from fields(inner, f"{where}[{index}]")
    else:
        yield where, value


def assert_differ_by(sent: Mapping[str, Any], ours: Mapping[str, Any], named: Differences) -> None:
    """All differences are named, and what is named is one."""
    left, right = dict(fields(sent)), dict(fields(ours))
    found = {
        place: (left.get(place, ABSENT), right.get(place, ABSENT))
        for place in left.keys() | right.keys()
        if left.get(place, ABSENT) != right.get(place, ABSENT)
    }
    assert found == {place: (theirs, own) for place, (theirs, own, _) in named.items()}


@pytest.mark.parametrize(
    ("changes", "flags", "named"),
    [
        pytest.param(
            {},
            [
                *("--machine-type=n1-standard-8", "--accelerator=type=nvidia-tesla-t4,count=1"),
                *("--provisioning-model=STANDARD", "--network-interface=network=default,nic-type=GVNIC"),
            ],
            {**COMMON, **DEFAULT_NETWORK},
            id="T4 on demand, default network",
        ),
        pytest.param(
            {
                "provisioning": "spot",
                "machine_type": "g2-standard-8",
                "gpu_type": None,
                "ssh_source": "iap",
                "subnetwork": "projects/p/regions/us-central1/subnetworks/hvdcloud",
            },
            [
                *("--machine-type=g2-standard-8", "--provisioning-model=SPOT"),
                "--network-interface=subnet=hvdcloud,nic-type=GVNIC,no-address",
            ],
            {**COMMON, **SUBNETWORK, **SPOT},
            id="Spot L4 without an external address",
        ),
    ],
)
def test_bulk_create(
    gcloud: Gcloud, recorder: Recorder, tmp_path: Path, changes: Any, flags: list[str], named: Differences
) -> None:
    [ours] = bulk_insert_bodies(
        SPEC, settings(**changes), zone=ZONE, vm_image="projects/cos-cloud/global/images/cos-125-19216-1-1"
    )
    metadata = {item["key"]: item["value"] for item in ours["instanceProperties"]["metadata"]["items"]}
    for key, value in metadata.items():
        (tmp_path / key).write_text(value)
    done = gcloud.run(
        *("compute", "instances", "bulk", "create", f"--zone={ZONE}", "--count=2", "--min-count=2"),
        *("--predefined-names=digits-0,digits-1", "--image=cos-125-19216-1-1", "--image-project=cos-cloud"),
        *("--boot-disk-size=100GB", "--boot-disk-type=pd-balanced", "--boot-disk-auto-delete"),
        *("--on-host-maintenance=TERMINATE", "--no-restart-on-failure"),
        *("--max-run-duration=12h", "--instance-termination-action=DELETE"),
        *("--service-account=nodes@p.iam.gserviceaccount.com", "--scopes=cloud-platform"),
        *("--shielded-secure-boot", "--shielded-vtpm", "--shielded-integrity-monitoring", f"--tags=hvdcloud,{TAG}"),
        "--labels=" + ",".join(f"{key}={value}" for key, value in SPEC.labels.items()),
        "--metadata-from-file=" + ",".join(f"{key}={tmp_path / key}" for key in metadata),
        *flags,
    )
    path, sent = recorder.recorded(done)
    assert path == f"/compute/v1/projects/p/zones/{ZONE}/instances/bulkInsert"
    properties = sent.pop("instanceProperties"), ours.pop("instanceProperties")
    assert_differ_by(*properties, named)
    assert sent == ours


def test_firewall_rules(gcloud: Gcloud, recorder: Recorder) -> None:
    ssh, mesh = firewall_bodies(SPEC, settings())
    for ours, flags in (
        (ssh, ["--allow=tcp:2222", "--source-ranges=198.51.100.7/32"]),
        (mesh, ["--allow=all", f"--source-tags={TAG}"]),
    ):
        described = f"--description={ours['description']}"
        command = ("compute", "firewall-rules", "create", ours["name"], "--network=default", "--direction=INGRESS")
        path, sent = recorder.recorded(gcloud.run(*command, f"--target-tags={TAG}", described, *flags))
        assert path == "/compute/v1/projects/p/global/firewalls"
        network = "projects/p/global/networks/default"
        assert_differ_by(sent, ours, {"network": (f"{API}/{network}", network, PARTIAL_URL)})
