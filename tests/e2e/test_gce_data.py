"""Data sets on Compute Engine: fetched from the VMs' start on, onto local SSDs, read by a run, and gone with them; and
by VMs that freeze or are killed meanwhile, only what had not arrived."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from hvdcloud.storage.open import open_bucket
from tests.support.chaos import disturb
from tests.support.cloud import NODES_ACCOUNT, Cloud, Earlier, running_cloud
from tests.support.cloud_views import BOOT_SECONDS, left, machine_of, zone_of
from tests.support.harness import Ended, Project, Screen, until

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
# Small ones, which share connections, and larger ones, which are counted when their batch is whole: the last is alone.
SIZES = (50_000, 100_000, 200_000, 5_000_000, 300_000)
MORE = {f"{number:03}.bin": random.Random(number).randbytes(size) for number, size in enumerate(SIZES)}
HELD = "004.bin"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, engine: Any, earlier: Earlier, image: str) -> Iterator[Cloud]:
    with running_cloud(tmp_path_factory.mktemp("cloud"), earlier=earlier) as cloud:
        bucket = open_bucket("gs://bucket", endpoint=cloud.storage.url)
        for name, content in TRAIN.items():
            bucket.write(f"data/train/{name}", content)
        for name in SHARDS:
            bucket.write(f"data/shards/{name}", name.encode())
        yield cloud


@pytest.fixture(scope="module")
def came_up(cloud: Cloud, engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, Ended]]:
    """Two VMs with data sets, and how `up` ended; nothing is left of them."""
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
    up = project.hvdcloud("up")
    yield project, up
    project.hvdcloud("down")
    assert left(cloud, project) == []


def fetched(cloud: Cloud) -> list[str]:
    """The data sets' objects whose content was sent, as often as it was."""
    paths = [path for method, path, status, _ in cloud.storage.requests if method == "GET" and 200 <= status < 300]
    return sorted(path.partition("?")[0] for path in paths if "data%2F" in path and "alt=media" in path)


def data_state(project: Project, node: int) -> list[Mapping[str, Any]]:
    """How far a node is with each of its data sets."""
    answer = json.loads(project.hvdcloud("ssh", str(node), "--", "hvdcloud-node", "data-state").out)
    return list(answer["states"])


def is_ready(project: Project, node: int) -> bool:
    """Whether a node has its data sets."""
    return [each["phase"] for each in data_state(project, node)] == ["ready", "ready"]


def sums(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def read(ended: Ended) -> list[dict[str, Any]]:
    """What each rank of a run found."""
    return [json.loads(line.partition("] ")[2]) for line in ended.out.splitlines() if '{"rank"' in line]


def test_data_sets_come_with_the_vms(cloud: Cloud, came_up: tuple[Project, Ended]) -> None:
    project, _ = came_up
    # Nobody has asked for a run.
    for node in (0, 1):
        ready = partial(is_ready, project, node)
        until(ready, seconds=BOOT_SECONDS, what=f"node {node}'s data")
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


def test_what_no_vm_can_have_ends_the_run_and_a_run_that_waits_is_left_shown_and_ended(
    cloud: Cloud, came_up: tuple[Project, Ended, str]
) -> None:
    project, opened = came_up[0], threading.Event()
    written = (project.folder / "hvdcloud.yaml").read_text()

    def configure(source: str) -> None:
        config = json.loads(written)
        config["data"]["late"] = source
        project.write("hvdcloud.yaml", json.dumps(config))

    try:
        configure("gs://bucket/data/nothing")
        refused = project.hvdcloud("run", expect=2)
        assert "gs://bucket/data/nothing has no objects" in refused.err
        open_bucket("gs://bucket", endpoint=cloud.storage.url).write("data/late/one", b"late")
        configure("gs://bucket/data/late")

        def holds(_token: str, action: str, _bucket: str, name: str) -> int:
            if action == "get" and name == "data/late/one":
                opened.wait(600)
            return 200

        cloud.storage.boundary = holds
        with project.started("run") as process:
            screen = Screen(process)
            screen.wait_for(f"{NAME}-1: fetching data", seconds=BOOT_SECONDS)
            process.send_signal(signal.SIGINT)
            screen.end(within=30)
        assert process.returncode == 130, screen.text
        assert "continues" in screen.text
        until(
            lambda: "waits for the data of 2 nodes" in project.hvdcloud("status").out,
            seconds=30,
            what="a status that says so",
        )
        project.hvdcloud("stop")
        assert "rank 0" not in screen.text
    finally:
        opened.set()
        cloud.storage.boundary = None
        project.write("hvdcloud.yaml", written)


def test_vms_that_freeze_or_are_killed_in_mid_fetch_leave_what_arrived(
    cloud: Cloud, came_up: tuple[Project, Ended], engine: Any
) -> None:
    project, node = came_up[0], f"{NAME}-1"
    bucket, opened = open_bucket("gs://bucket", endpoint=cloud.storage.url), threading.Event()
    for name, content in MORE.items():
        bucket.write(f"data/more/{name}", content)
    config = json.loads((project.folder / "hvdcloud.yaml").read_text())
    config["data"]["more"] = "gs://bucket/data/more"
    project.write("hvdcloud.yaml", json.dumps(config))
    free = {name for name in MORE if name != HELD}

    def holds_one(_token: str, action: str, _bucket: str, name: str) -> int:
        if action == "get" and name == f"data/more/{HELD}":
            opened.wait(600)
        return 200

    def sent() -> Counter[str]:
        """The objects of the new set whose content was sent, without the one that is held."""
        names = Counter(path.rpartition("%2F")[2] for path in fetched(cloud) if "data%2Fmore%2F" in path)
        return Counter({name: count for name, count in names.items() if name in free})

    def has_all_but_one(number: int) -> bool:
        return [each["files"] for each in data_state(project, number) if each["name"] == "more"] == [len(free)]

    cloud.storage.boundary = holds_one
    try:
        # Frozen, and thawed when its run has ended without it.
        with project.started("run") as process:
            screen = Screen(process)
            screen.wait_for(f"{node}: fetching data", seconds=BOOT_SECONDS)
            for number in (0, 1):
                until(partial(has_all_but_one, number), seconds=60, what=f"all but one object on node {number}")
            happened = disturb(engine, "pause", machine_of(cloud, node))
            try:
                screen.end(within=90)
            finally:
                happened.undo()
        assert process.returncode == 7, screen.text
        assert f"node {node} was lost: " in screen.text
        assert "rank 0" not in screen.text
        assert sent() == Counter(dict.fromkeys(free, 2))

        # Killed, while it waits for the rest.
        with project.started("run") as process:
            screen = Screen(process)
            screen.wait_for(f"{node}: fetching data", seconds=BOOT_SECONDS)
            cloud.emulator.kill(zone_of(cloud, node), node)
            screen.end(within=90)
        assert process.returncode == 7, screen.text
        assert f"node {node} was lost: " in screen.text
        assert sent() == Counter(dict.fromkeys(free, 2)), "neither had anything to fetch again"
        refused = project.hvdcloud("run", expect=5)
        assert f"{node} stopped" in refused.err
        assert "hvdcloud resize 2 brings the others back" in refused.err
    finally:
        opened.set()
        cloud.storage.boundary = None

    # The local SSDs of the new VM are empty.
    project.hvdcloud("resize", "2")
    told = read(project.hvdcloud("run"))
    assert sent() == Counter(dict.fromkeys(free, 3))
    assert [(each["train"], each["more"]) for each in told] == [(sums(TRAIN), sums(MORE))] * 2
    assert sorted(name for each in told for name in each["shards"]) == SHARDS
