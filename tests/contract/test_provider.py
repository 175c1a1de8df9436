"""What every provider promises (hvdcloud/providers/base.py), on the real thing."""

from __future__ import annotations

import dataclasses
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.errors import HvdcloudError, NodeError, UsageError
from hvdcloud.providers.base import ClusterSpec, NodeState, Provider
from hvdcloud.providers.local import LocalProvider
from hvdcloud.remote.keys import new_key_pair
from hvdcloud.state import Journal
from tests.harness import labelled


@pytest.fixture(params=["local"])
def provider(request: pytest.FixtureRequest, engine: Any) -> Provider:
    return {"local": LocalProvider}[request.param](engine)


@pytest.fixture
def spec(image: str, tmp_path: Path) -> ClusterSpec:
    return ClusterSpec(
        name=f"t-{secrets.token_hex(4)}",
        id=secrets.token_hex(3),
        owner="tester",
        nodes=2,
        image=image,
        bucket=(tmp_path / "bucket").as_uri(),
        authorized_key=new_key_pair("test").public,
        created=datetime.now(timezone.utc),
    )


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


@pytest.fixture(autouse=True)
def nothing_left(engine: Any, spec: ClusterSpec) -> Iterator[None]:
    yield
    left = labelled(engine, spec.name)
    LocalProvider(engine).destroy(spec.name)
    assert not left


def deadline() -> float:
    return time.monotonic() + 60


def test_a_cluster_comes_up_is_found_by_label_and_goes(provider: Provider, spec: ClusterSpec, journal: Journal) -> None:
    assert provider.preflight(spec) == []
    assert provider.cluster(spec.name) is None
    nodes = provider.create(provider.plan(spec), journal=journal)
    try:
        ready = provider.wait_ready(nodes, deadline=deadline())
        assert [node.index for node in ready] == [0, 1]
        assert all((node.host_key or "").startswith("ssh-ed25519 ") for node in ready)
        assert len({node.host_key for node in ready}) == 2
        found = provider.cluster(spec.name)
        assert found is not None
        assert found.whole
        assert (found.id, found.owner, found.bucket, found.image) == (spec.id, "tester", spec.bucket, spec.image)
        assert [node.name for node in found.nodes] == [spec.node_name(0), spec.node_name(1)]
        assert found.head is not None
        assert found.head.state is NodeState.RUNNING
        assert spec.name in [cluster.name for cluster in provider.list().clusters]
        assert "hvdcloud-status" in provider.console(ready[0])
    finally:
        assert list(provider.destroy(spec.name)) == []
    assert provider.cluster(spec.name) is None


def test_destroy_of_what_is_not_there_is_success(provider: Provider, spec: ClusterSpec) -> None:
    assert list(provider.destroy(spec.name)) == []
    assert list(provider.destroy(spec.name)) == []


def test_plan_is_pure_and_labels_every_object(provider: Provider, spec: ClusterSpec, engine: Any) -> None:
    first, second = provider.plan(spec), provider.plan(spec)
    assert first == second
    assert all(request.body["labels"].items() >= spec.labels.items() for request in first.requests)
    assert labelled(engine, spec.name) == []


def test_the_journal_hears_of_the_objects_before_they_are_made(
    provider: Provider, spec: ClusterSpec, journal: Journal, engine: Any
) -> None:
    seen: list[list[str]] = []

    class Watching(Journal):
        def record(self, event: str, **fields: object) -> None:
            seen.append(labelled(engine, spec.name))
            super().record(event, **fields)

    provider.create(provider.plan(spec), journal=Watching(journal._path))
    provider.destroy(spec.name)
    assert seen == [[]]
    assert journal.entries()[0]["cluster_id"] == spec.id


def test_create_leaves_nothing_when_one_node_cannot_be_made(
    provider: Provider, spec: ClusterSpec, journal: Journal, engine: Any
) -> None:
    stranger = engine.containers.create(spec.image, name=spec.node_name(1), entrypoint="true")
    try:
        problems = provider.preflight(spec)
        assert [spec.node_name(1) in problem.message for problem in problems] == [True]
        assert "not hvdcloud's" in problems[0].message
        with pytest.raises(UsageError, match="taken"):
            provider.create(provider.plan(spec), journal=journal)
        assert labelled(engine, spec.name) == []
        stranger.reload()
        assert stranger.name == spec.node_name(1)
    finally:
        stranger.remove(force=True)


def test_create_never_touches_a_cluster_that_somebody_else_made_under_the_name(
    provider: Provider, spec: ClusterSpec, journal: Journal
) -> None:
    provider.create(provider.plan(spec), journal=journal)
    try:
        other = dataclasses.replace(spec, id=secrets.token_hex(3))
        assert "exists already" in provider.preflight(other)[0].message
        with pytest.raises(UsageError):
            provider.create(provider.plan(other), journal=journal)
        found = provider.cluster(spec.name)
        assert found is not None
        assert found.whole
        assert found.id == spec.id
    finally:
        provider.destroy(spec.name)


def test_of_two_creates_at_once_one_wins_and_stays_whole(
    provider: Provider, spec: ClusterSpec, journal: Journal
) -> None:
    outcomes: dict[str, object] = {}

    def create(mine: ClusterSpec) -> None:
        try:
            outcomes[mine.id] = provider.create(provider.plan(mine), journal=journal)
        except HvdcloudError as error:
            outcomes[mine.id] = error

    specs = [spec, dataclasses.replace(spec, id=secrets.token_hex(3))]
    threads = [threading.Thread(target=create, args=(mine,)) for mine in specs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        found = provider.cluster(spec.name)
        winners = [mine for mine in specs if not isinstance(outcomes[mine.id], HvdcloudError)]
        # Both may lose, when each has taken something that the other needed; neither may win half a cluster.
        assert len(winners) <= 1
        if winners:
            assert found is not None
            assert found.whole
            assert found.id == winners[0].id
        else:
            assert found is None
    finally:
        provider.destroy(spec.name)


@contextmanager
def image_that_runs(engine: Any, image: str, *argv: str) -> Iterator[str]:
    """The image with another program in the node program's place."""
    container = engine.containers.create(image)
    try:
        changed = container.commit(
            repository="hvdcloud-test", tag=secrets.token_hex(4), changes=f"ENTRYPOINT {json.dumps(argv)}"
        )
    finally:
        container.remove()
    try:
        yield changed.tags[0]
    finally:
        engine.images.remove(changed.id, force=True)


def test_a_node_that_stops_while_booting_is_reported_with_its_log(
    provider: Provider, spec: ClusterSpec, journal: Journal, engine: Any
) -> None:
    with image_that_runs(engine, spec.image, "sh", "-c", "echo no host key could be made >&2; exit 3") as broken:
        nodes = provider.create(provider.plan(dataclasses.replace(spec, image=broken)), journal=journal)
        try:
            with pytest.raises(NodeError, match="stopped while coming up") as caught:
                provider.wait_ready(nodes, deadline=deadline())
            assert "no host key could be made" in caught.value.details
        finally:
            provider.destroy(spec.name)


def test_waiting_for_a_node_that_never_gets_ready_ends_at_the_deadline(
    provider: Provider, spec: ClusterSpec, journal: Journal, engine: Any
) -> None:
    with image_that_runs(engine, spec.image, "sleep", "1000") as silent:
        nodes = provider.create(provider.plan(dataclasses.replace(spec, image=silent)), journal=journal)
        try:
            began = time.monotonic()
            with pytest.raises(NodeError, match="did not come up in time"):
                provider.wait_ready(nodes, deadline=began + 1.0)
            assert time.monotonic() - began < 10
        finally:
            provider.destroy(spec.name)


def test_a_paused_node_shows_as_frozen_and_can_be_deleted(
    provider: Provider, spec: ClusterSpec, journal: Journal, engine: Any
) -> None:
    nodes = provider.create(provider.plan(spec), journal=journal)
    try:
        engine.api.pause(nodes[1].id)
        found = provider.cluster(spec.name)
        assert found is not None
        assert not found.whole
        assert [node.state for node in found.nodes] == [NodeState.RUNNING, NodeState.FROZEN]
    finally:
        assert list(provider.destroy(spec.name)) == []
