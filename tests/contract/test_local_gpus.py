"""Nodes with GPUs on a real engine: what each gets, and that no two clusters get the same.

No GPU is needed: the engine has a stand-in of the hook of NVIDIA's container toolkit, and this machine of nvidia-smi.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import docker
import pytest

from hvdcloud.cluster.model import LABEL_CLUSTER, ClusterSpec
from hvdcloud.errors import CapacityError, HvdcloudError
from hvdcloud.providers.engine.gpus import LABEL_GPUS
from hvdcloud.providers.local.provider import LocalProvider
from tests.support.engines import second_engine
from tests.support.gpus import created_at_once, put_programs
from tests.support.harness import labelled
from tests.support.provider_backends import new_spec

pytestmark = pytest.mark.engine

NODE_IMAGE = "hvdcloud-test/sleeping:1"
ROUNDS = 4


@dataclasses.dataclass(frozen=True)
class Box:
    """A machine with four GPUs and its engine."""

    docker_host: str
    client: Any
    programs: Path
    """Its nvidia-smi and its toolkit's hook."""

    def provider(self, count: int | Literal["all"] = "all") -> LocalProvider:
        """Of a user of the machine: with a connection of its own."""
        return LocalProvider(docker.DockerClient(base_url=self.docker_host), gpus=count)

    def visible(self, container: str) -> list[str]:
        """The GPUs that a container's programs see."""
        found = self.client.containers.get(container).exec_run(["sh", "-c", "cd /dev && ls -d nvidia*"])
        return str(found.output.decode()).split()


@pytest.fixture(scope="module")
def box(engine: Any, image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    programs = tmp_path_factory.mktemp("gpus")
    put_programs(programs)
    with second_engine(programs=programs) as found:
        client = docker.DockerClient(base_url=found.docker_host)
        # What the node's own image is made on is here; of a node, only its GPUs are looked at.
        (base,) = client.images.load(engine.images.get("debian:bookworm-slim").save(named=True))
        made = client.containers.create(base, ["sleep", "infinity"])
        made.commit("hvdcloud-test/sleeping", tag="1", changes='ENTRYPOINT ["sleep", "infinity"]\nCMD []')
        made.remove()
        yield Box(docker_host=found.docker_host, client=client, programs=programs)
        client.close()


@pytest.fixture(autouse=True)
def machine(box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is on the machine with the GPUs, where nothing computes; no container is left on it."""
    (box.programs / "processes.csv").write_text("")
    monkeypatch.setenv("PATH", f"{box.programs}:{os.environ['PATH']}")
    yield
    assert labelled(box.client) == []


def cluster(folder: Path, *, nodes: int = 1) -> ClusterSpec:
    return new_spec(NODE_IMAGE, bucket=(folder / "bucket").as_uri(), nodes=nodes)


@contextlib.contextmanager
def up(provider: LocalProvider, spec: ClusterSpec) -> Iterator[None]:
    provider.create(provider.plan(spec))
    try:
        yield
    finally:
        assert list(provider.destroy(spec.name)) == []


def test_each_node_sees_its_own_gpus_and_no_others(box: Box, tmp_path: Path) -> None:
    provider, spec = box.provider(), cluster(tmp_path, nodes=2)
    with up(provider, spec):
        assert box.visible(spec.node_name(0)) == ["nvidia0", "nvidia1"]
        assert box.visible(spec.node_name(1)) == ["nvidia2", "nvidia3"]
    without, plain = LocalProvider(box.client), cluster(tmp_path)
    with up(without, plain):
        assert [name for name in box.visible(plain.node_name(0)) if name.startswith("nvidia")] == []


def test_gpus_of_another_cluster_are_passed_over_then_refused(box: Box, tmp_path: Path) -> None:
    first, second, third = (cluster(tmp_path) for _ in range(3))
    with up(box.provider(count=2), first), up(box.provider(count=2), second):
        assert box.visible(second.node_name(0)) == ["nvidia2", "nvidia3"]
        with pytest.raises(CapacityError, match=f"GPU 0 is used by cluster {first.name} of tester"):
            box.provider(count=1).plan(third)
        # Nobody has to compute on a GPU to have it, and a paused cluster has it still.
        box.client.api.pause(first.node_name(0))
        with pytest.raises(CapacityError, match="0 of 4 GPUs"):
            box.provider(count=1).plan(third)
    with up(box.provider(), third):
        assert len(box.visible(third.node_name(0))) == 4


def test_a_node_that_was_lost_comes_back_with_its_share(box: Box, tmp_path: Path) -> None:
    provider, spec = box.provider(), cluster(tmp_path, nodes=2)
    with up(provider, spec):
        box.client.api.kill(spec.node_name(1))
        provider.grow(spec, [1])
        assert box.visible(spec.node_name(1)) == ["nvidia2", "nvidia3"]


def test_a_node_that_starts_again_gets_no_gpu_that_another_cluster_has_now(box: Box, tmp_path: Path) -> None:
    provider, spec, other = box.provider(count=2), cluster(tmp_path), cluster(tmp_path)
    with up(provider, spec):
        box.client.api.kill(spec.node_name(0))
        with up(box.provider(), other):
            seen = provider.cluster(spec.name)
            assert seen is not None
            with pytest.raises(CapacityError, match=f"cluster {other.name} of tester has them"):
                provider.revive(seen.nodes, deadline=time.monotonic() + 60)
            assert {each[LABEL_CLUSTER] for each in running(box)} == {other.name}


def test_of_many_that_want_the_same_gpus_at_once_no_two_get_one(box: Box, tmp_path: Path) -> None:
    """Three users each want two of four, again and again: who does not get them is told who has them."""
    for _ in range(ROUNDS):
        specs = [cluster(tmp_path, nodes=2) for _ in range(3)]
        providers = {spec.name: box.provider(count=2) for spec in specs}
        try:
            outcomes = created_at_once(specs, providers)
            held = Counter(uuid for each in running(box) for uuid in each[LABEL_GPUS].split(","))
            assert all(count == 1 for count in held.values()), outcomes
            refused = [each for each in outcomes if isinstance(each, HvdcloudError)]
            assert {type(each) for each in refused} == {CapacityError}, outcomes
            assert len({each[LABEL_CLUSTER] for each in running(box)}) == len(specs) - len(refused)
        finally:
            for spec in specs:
                assert list(providers[spec.name].destroy(spec.name)) == []


def running(box: Box) -> list[dict[str, str]]:
    """The labels of our containers that run."""
    return [found["Labels"] for found in box.client.api.containers(filters={"label": LABEL_GPUS})]
