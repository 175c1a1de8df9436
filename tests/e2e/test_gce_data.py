"""Data sets on Compute Engine: fetched from the VMs' start on, and read by a run."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from hvdcloud.storage.open import open_bucket
from tests.support.cloud import NODES_ACCOUNT, Cloud
from tests.support.cloud_views import left
from tests.support.harness import Ended, Project, until

pytestmark = pytest.mark.engine

NAME = "t-gce-data"
READ = """
import hashlib, json, os, pathlib

told = {"rank": int(os.environ["HOROVOD_RANK"])}
for folder in pathlib.Path(os.environ["HVDCLOUD_DATA"]).glob("[!.]*"):
    told[folder.name] = {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in folder.iterdir()}
print(json.dumps(told), flush=True)
"""
TRAIN = {f"{number:03}.bin": random.Random(number).randbytes(100_000 + number) for number in range(8)}
SHARDS = [f"part-{number}" for number in range(5)]


@pytest.fixture(scope="module")
def cloud(cloud: Cloud) -> Cloud:
    """With two data sets."""
    bucket = open_bucket("gs://bucket", endpoint=cloud.storage.url)
    for name, content in TRAIN.items():
        bucket.write(f"data/train/{name}", content)
    for name in SHARDS:
        bucket.write(f"data/shards/{name}", name.encode())
    return cloud


@pytest.fixture(scope="module")
def project(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two VMs with data sets; nothing is left of them."""
    project = cloud.project(
        tmp_path_factory.mktemp("data"),
        NAME,
        gce={"zones": ["us-central1-b"]},
        data={
            "train": "gs://bucket/data/train",
            "shards": {"source": "gs://bucket/data/shards", "per_node": "shard"},
        },
    )
    project.write("train.py", READ)
    project.hvdcloud("push")
    project.hvdcloud("up")
    yield project
    project.hvdcloud("down")
    assert left(cloud, project) == []


def fetched(cloud: Cloud) -> list[str]:
    """The data sets' objects whose content was sent, as often as it was."""
    paths = [path for method, path, status, _ in cloud.storage.requests if method == "GET" and 200 <= status < 300]
    return sorted(path.partition("?")[0] for path in paths if "data%2F" in path and "alt=media" in path)


def is_ready(project: Project, node: int) -> bool:
    """Whether a node has its data sets."""
    shown = project.hvdcloud("ssh", str(node), "--", "cat", "/run/hvdcloud/data.json", expect=None).out
    return bool(shown) and json.loads(shown)["phase"] == "ready"


def sums(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def read(ended: Ended) -> list[dict[str, Any]]:
    """What each rank of a run found."""
    return [json.loads(line.partition("] ")[2]) for line in ended.out.splitlines() if '{"rank"' in line]


@pytest.mark.nightly
def test_data_sets_come_with_the_vms(cloud: Cloud, project: Project) -> None:
    # Nobody has asked for a run.
    for node in (0, 1):
        ready = partial(is_ready, project, node)
        until(ready, what=f"node {node}'s data")
    assert len(fetched(cloud)) == 2 * len(TRAIN) + len(SHARDS)

    told = read(project.hvdcloud("run"))
    assert sorted(each["rank"] for each in told) == [0, 1]
    assert [each["train"] for each in told] == [sums(TRAIN)] * 2
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
