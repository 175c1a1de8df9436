"""What every provider promises (hvdcloud/providers/base.py): containers on the real engine, VMs on the stand-in."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hvdcloud.cluster.model import Cluster, ClusterSpec, Node, NodeState
from hvdcloud.errors import HvdcloudError, NameTakenError, NodeError, UsageError
from hvdcloud.providers.base import Provider
from tests.standins.compute import Emulator
from tests.support.harness import freeze
from tests.support.provider_backends import GceWorkshop, LocalWorkshop, NodeImages, SshWorkshop, Workshop, node_images
from tests.support.ssh_hosts import SshHosts, ssh_hosts

pytestmark = pytest.mark.engine


SAYS = "no host key could be made"


@pytest.fixture(scope="module")
def of_engine(engine: Any, image: str) -> Iterator[NodeImages]:
    with node_images(engine, image, says=SAYS) as images:
        yield images


@pytest.fixture(scope="module")
def own_hosts(of_engine: NodeImages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    """Four machines that are reached by SSH and have the images; how they get one: test_own_machines.py."""
    folder, images = tmp_path_factory.mktemp("user"), of_engine.all()
    with ssh_hosts(folder, "gpu0", "gpu1", "gpu2", "gpu3", images=images) as hosts:
        yield hosts


@pytest.fixture(scope="module", params=["local", "ssh", "gce"])
def workshop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    if request.param == "local":
        engine, images = request.getfixturevalue("engine"), request.getfixturevalue("of_engine")
        yield LocalWorkshop(engine, images, tmp_path_factory.mktemp("local"))
        return
    if request.param == "ssh":
        hosts = request.getfixturevalue("own_hosts")
        found = SshWorkshop(hosts, request.getfixturevalue("of_engine"))
        with pytest.MonkeyPatch.context() as patch, contextlib.closing(found.provider):
            patch.setenv("PATH", hosts.path)
            yield found
        return
    with Emulator() as emulator:
        yield GceWorkshop(emulator)


@pytest.fixture
def provider(workshop: Workshop) -> Provider:
    return workshop.provider


@pytest.fixture
def spec(workshop: Workshop) -> Iterator[ClusterSpec]:
    """Of which nothing is left after the test."""
    spec = workshop.spec()
    yield spec
    left = workshop.left(spec.name)
    workshop.provider.destroy(spec.name)
    assert not left


def deadline() -> float:
    return time.monotonic() + 60


@contextlib.contextmanager
def made(provider: Provider, spec: ClusterSpec) -> Iterator[Sequence[Node]]:
    """The nodes of a cluster that is deleted after the block."""
    try:
        yield provider.create(provider.plan(spec))
    finally:
        assert list(provider.destroy(spec.name)) == []


def whole(provider: Provider, spec: ClusterSpec) -> Cluster:
    """The cluster of this name, which has all its nodes."""
    found = provider.cluster(spec.name)
    assert found is not None
    assert found.whole
    return found


def test_a_cluster_comes_up_is_found_by_label_and_goes(provider: Provider, spec: ClusterSpec) -> None:
    assert provider.cluster(spec.name) is None
    with made(provider, spec) as nodes:
        ready = provider.wait_ready(nodes, deadline=deadline())
        assert [node.index for node in ready] == [0, 1]
        assert all((node.host_key or "").startswith("ssh-ed25519 ") for node in ready)
        assert len({node.host_key for node in ready}) == 2
        found = whole(provider, spec)
        assert (found.id, found.owner, found.bucket, found.image) == (spec.id, "tester", spec.bucket, spec.image)
        assert [node.name for node in found.nodes] == [spec.node_name(0), spec.node_name(1)]
        assert found.head is not None
        assert found.head.state is NodeState.RUNNING
        assert spec.name in [cluster.name for cluster in provider.list().clusters]
    assert provider.cluster(spec.name) is None


def test_destroy_of_what_is_not_there_is_success(provider: Provider, spec: ClusterSpec) -> None:
    assert list(provider.destroy(spec.name)) == []
    assert list(provider.destroy(spec.name)) == []


def test_plan_is_pure_and_labels_every_object(workshop: Workshop, provider: Provider, spec: ClusterSpec) -> None:
    first, second = provider.plan(spec), provider.plan(spec)
    assert first == second
    for request in first.requests:
        text = json.dumps(dict(request.body))
        for key, value in spec.labels.items():
            assert f'"{key}": "{value}"' in text or f"{key}={value}" in text, request.object
    assert workshop.left(spec.name) == []


def test_create_leaves_nothing_where_one_node_fails(workshop: Workshop, provider: Provider, spec: ClusterSpec) -> None:
    plan = provider.plan(spec)
    with workshop.stranger(spec.node_name(1)):
        with pytest.raises(UsageError, match=r"already exists|is taken"):
            provider.create(plan)
        assert [each for each in workshop.left(spec.name) if spec.node_name(1) not in each] == []


def test_create_never_touches_a_cluster_of_another_user_under_the_name(provider: Provider, spec: ClusterSpec) -> None:
    other = dataclasses.replace(spec, id=secrets.token_hex(3))
    plan_of_other = provider.plan(other)
    with made(provider, spec):
        before = [node.id for node in whole(provider, spec).nodes]
        with pytest.raises(UsageError):
            provider.create(plan_of_other)
        found = whole(provider, spec)
        assert (found.id, [node.id for node in found.nodes]) == (spec.id, before)


def test_of_two_creates_at_once_one_wins_and_stays_whole(provider: Provider, spec: ClusterSpec) -> None:
    outcomes: dict[str, object] = {}

    def create(mine: ClusterSpec) -> None:
        try:
            outcomes[mine.id] = provider.create(provider.plan(mine))
        except HvdcloudError as error:
            outcomes[mine.id] = error

    specs = [spec, dataclasses.replace(spec, id=secrets.token_hex(3))]
    # As from two machines: on one, the second waits for the lock of the cluster's state.
    threads = [threading.Thread(target=create, args=[each]) for each in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        winners = [mine for mine in specs if not isinstance(outcomes[mine.id], HvdcloudError)]
        # Both may lose, when each has taken something that the other needed; neither may win half a cluster.
        assert len(winners) <= 1
        if winners:
            assert whole(provider, spec).id == winners[0].id
        else:
            assert provider.cluster(spec.name) is None
    finally:
        provider.destroy(spec.name)


def test_a_node_that_stops_while_booting_is_reported_with_its_log(
    workshop: Workshop, provider: Provider, spec: ClusterSpec
) -> None:
    with workshop.broken(spec, says=SAYS) as broken, made(provider, broken) as nodes:
        with pytest.raises(NodeError, match=r"stopped while coming up|failed at step start") as caught:
            provider.wait_ready(nodes, deadline=deadline())
        assert SAYS in caught.value.details


def test_waiting_for_a_node_that_never_gets_ready_ends_at_the_deadline(
    workshop: Workshop, provider: Provider, spec: ClusterSpec
) -> None:
    with (
        workshop.silent(spec) as silent,
        made(provider, silent) as nodes,
        pytest.raises(NodeError, match="did not come up in time"),
    ):
        provider.wait_ready(nodes, deadline=time.monotonic() + 1.0)


@pytest.mark.parametrize("workshop", ["local", "ssh"], indirect=True)
def test_starting_nodes_again_ends_with_the_first_that_cannot(
    workshop: Workshop, provider: Provider, spec: ClusterSpec
) -> None:
    with workshop.silent(spec) as silent, made(provider, silent) as nodes:
        workshop.stop(nodes[0].name)
        workshop.lose(nodes[1].name)
        until = deadline()
        with pytest.raises(NodeError, match=f"{nodes[1].name} does not start again"):
            provider.revive(nodes, deadline=until)
        assert time.monotonic() < until


@pytest.mark.parametrize("workshop", ["local"], indirect=True)
def test_a_paused_node_shows_as_frozen_and_can_be_deleted(provider: Provider, spec: ClusterSpec, engine: Any) -> None:
    with made(provider, spec) as nodes:
        freeze(engine.containers.get(nodes[1].id))
        found = provider.cluster(spec.name)
        assert found is not None
        assert not found.whole
        assert [node.state for node in found.nodes] == [NodeState.RUNNING, NodeState.FROZEN]


@pytest.fixture(scope="module")
def pair_spec(workshop: Workshop) -> Iterator[ClusterSpec]:
    """Of which nothing is left after the last test."""
    spec = workshop.spec()
    yield spec
    assert list(workshop.provider.destroy(spec.name)) == []
    assert workshop.left(spec.name) == []


@pytest.fixture
def pair(provider: Provider, pair_spec: ClusterSpec) -> ClusterSpec:
    """A cluster of two nodes that is up, as every test leaves it that does not fail."""
    found = provider.cluster(pair_spec.name)
    if found is None or not found.whole or len(found.nodes) != pair_spec.nodes:
        assert list(provider.destroy(pair_spec.name)) == []
        provider.wait_ready(provider.create(provider.plan(pair_spec)), deadline=deadline())
    return pair_spec


def test_a_cluster_grows_by_the_nodes_that_are_named_and_shrinks_by_them(
    workshop: Workshop, provider: Provider, pair: ClusterSpec
) -> None:
    before = workshop.left(pair.name)
    larger = dataclasses.replace(pair, nodes=4)
    planned = provider.plan_growth(larger, [2, 3])
    assert all("firewall" not in each.object and "network" not in each.object for each in planned.requests)
    assert workshop.left(pair.name) == before
    made = provider.wait_ready(provider.grow(larger, [2, 3]), deadline=deadline())
    assert [node.index for node in made] == [2, 3]
    assert all((node.host_key or "").startswith("ssh-ed25519 ") for node in made)
    provider.set_size(pair.name, 4)
    found = whole(provider, pair)
    assert (found.id, found.bucket, found.image) == (pair.id, pair.bucket, pair.image)
    assert found.created == pair.created.replace(microsecond=0)
    assert list(provider.shrink(pair.name, [2, 3])) == []
    provider.set_size(pair.name, 2)
    assert workshop.left(pair.name) == before
    assert list(provider.shrink(pair.name, [2, 3])) == []


@pytest.mark.parametrize("way", ["stopped", "lost"])
def test_a_node_that_is_stopped_or_lost_comes_back_new(
    workshop: Workshop, provider: Provider, pair: ClusterSpec, way: str
) -> None:
    name = pair.node_name(1)
    workshop.stop(name) if way == "stopped" else workshop.lose(name)
    found = provider.cluster(pair.name)
    assert found is not None
    assert not found.whole
    before = {node.name: node for node in found.nodes}
    (made,) = provider.wait_ready(provider.grow(pair, [1]), deadline=deadline())
    assert (made.name, made.index) == (name, 1)
    assert whole(provider, pair).nodes[0].id == before[pair.node_name(0)].id


def test_grow_touches_no_node_that_runs(workshop: Workshop, provider: Provider, pair: ClusterSpec) -> None:
    before = workshop.left(pair.name)
    with pytest.raises(NameTakenError, match=r"already exists|is taken"):
        provider.grow(dataclasses.replace(pair, nodes=3), [1, 2])
    assert workshop.left(pair.name) == before
    whole(provider, pair)


def test_grow_makes_all_or_none_and_keeps_the_others(workshop: Workshop, provider: Provider, pair: ClusterSpec) -> None:
    with workshop.stranger(pair.node_name(3)):
        with pytest.raises(NameTakenError, match=r"already exists|is taken"):
            provider.grow(dataclasses.replace(pair, nodes=4), [2, 3])
        found = provider.cluster(pair.name)
        assert found is not None
        assert [node.index for node in found.nodes] == [0, 1]
    whole(provider, pair)
