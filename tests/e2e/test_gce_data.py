"""Data sets on Compute Engine: fetched from the VMs' start on, onto local SSDs, read by a run, and gone with them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.storage.open import open_bucket
from tests.standins.compute.machines import LABEL
from tests.support.cloud import NODES_ACCOUNT, Cloud, Earlier, running_cloud
from tests.support.cloud_views import BOOT_SECONDS, left
from tests.support.harness import Project, until
from tests.support.machines_lab import loop_devices

pytestmark = pytest.mark.engine

READ = """
import hashlib, json, os, pathlib
import horovod.torch as hvd

hvd.init()
data = pathlib.Path(os.environ["HVDCLOUD_DATA"])
train = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in (data / "train").iterdir()}
shards = sorted(each.name for each in (data / "shards").iterdir())
print(json.dumps({"rank": hvd.rank(), "train": train, "shards": shards}), flush=True)
"""
TRAIN = {f"{number:03}.bin": random.Random(number).randbytes(100_000 + number) for number in range(8)}
SHARDS = [f"part-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, engine: Any, earlier: Earlier, image: str) -> Iterator[Cloud]:
    with running_cloud(tmp_path_factory.mktemp("cloud"), earlier=earlier) as cloud:
        bucket = open_bucket("gs://bucket", endpoint=cloud.storage.url)
        for name, content in TRAIN.items():
            bucket.write(f"data/train/{name}", content)
        for name in SHARDS:
            bucket.write(f"data/shards/{name}", name.encode())
        yield cloud


def fetched(cloud: Cloud) -> list[str]:
    """The data sets' objects whose content was sent, as often as it was."""
    paths = [path for method, path, status, _ in cloud.storage.requests if method == "GET" and 200 <= status < 300]
    return sorted(path.partition("?")[0] for path in paths if "data%2F" in path and "alt=media" in path)


def is_ready(project: Project, node: int) -> bool:
    """Whether a node has its data sets."""
    answer = json.loads(project.hvdcloud("ssh", str(node), "--", "hvdcloud-node", "data-state").out)
    return [each["phase"] for each in answer["states"]] == ["ready", "ready"]


def test_data_sets_come_with_the_vms_onto_their_local_ssds_and_go_with_them(
    cloud: Cloud, engine: Any, tmp_path: Path
) -> None:
    project = cloud.project(
        tmp_path,
        "t-gce-data",
        gce={"zones": ["us-central1-b"], "local_ssd": 2},
        data={
            "train": "gs://bucket/data/train",
            "shards": {"source": "gs://bucket/data/shards", "per_node": "shard"},
        },
    )
    project.write("train.py", READ)
    project.hvdcloud("push")
    up = project.hvdcloud("up")
    assert "data: train: 800.0 kB in 8 objects of gs://bucket/data/train in us; shards: " in up.err
    assert cloud.machines
    labelled = {"label": f"{LABEL}={cloud.machines.network}"}
    console = "\n".join(each.logs().decode() for each in engine.containers.list(filters=labelled))
    assert console.count("hvdcloud: data sets go to local SSDs: 2 of them as /dev/md0") == 2
    assert loop_devices(console) == 2 * 3

    # Nobody has asked for a run.
    for node in (0, 1):
        ready = partial(is_ready, project, node)
        until(ready, seconds=BOOT_SECONDS, what=f"node {node}'s data")
        mount = project.hvdcloud("ssh", str(node), "--", "grep", "/var/lib/hvdcloud/data", "/proc/mounts").out
        assert mount.startswith("/dev/md0 /var/lib/hvdcloud/data ext4 rw,")
    assert len(fetched(cloud)) == 2 * len(TRAIN) + len(SHARDS)

    ended = project.hvdcloud("run")
    told = [json.loads(line.partition("] ")[2]) for line in ended.out.splitlines() if '{"rank"' in line]
    assert sorted(each["rank"] for each in told) == [0, 1]
    whole = {name: hashlib.sha256(content).hexdigest() for name, content in TRAIN.items()}
    assert [each["train"] for each in told] == [whole, whole]
    assert sorted(name for each in told for name in each["shards"]) == SHARDS
    assert sorted(len(each["shards"]) for each in told) == [2, 3]
    # A second run on these VMs lists the buckets, and fetches nothing.
    had = [each for each in fetched(cloud) if ".hvdcloud%2F" not in each]
    again = project.hvdcloud("run", "--json").json["result"]
    assert [(each["phase"], each["files"]) for each in again["data"]["nodes"]] == [("ready", 11), ("ready", 10)]
    assert [each for each in fetched(cloud) if ".hvdcloud%2F" not in each] == had

    # The nodes came with the service account of their VM.
    tokens = [token for token in cloud.storage.tokens if token]
    assert {cloud.emulator.keys.check(f"Bearer {token}") for token in tokens} == {NODES_ACCOUNT}

    project.hvdcloud("down")
    assert left(cloud, project) == []
    until(lambda: loop_devices(console) == 0, seconds=BOOT_SECONDS, what="the loop devices to be free")
