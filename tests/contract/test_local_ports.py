"""How provider local reaches nodes: at ports that the engine publishes on this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.model import ClusterSpec, Node
from hvdcloud.providers.local.provider import LocalProvider
from tests.support.provider_backends import new_spec

pytestmark = pytest.mark.engine


@pytest.fixture
def spec(engine: Any, image: str, tmp_path: Path) -> Iterator[ClusterSpec]:
    """One node, which does not exist after the test."""
    spec = new_spec(image, bucket=(tmp_path / "bucket").as_uri(), nodes=1)
    yield spec
    LocalProvider(engine).destroy(spec.name)


def up(provider: LocalProvider, spec: ClusterSpec, folder: Path) -> Node:
    nodes = provider.create(provider.plan(spec))
    (node,) = provider.wait_ready(nodes, deadline=time.monotonic() + provider.ready_seconds)
    return node


def greeting(node: Node) -> bytes:
    """The first words of what listens at a node's address."""
    with socket.create_connection((node.address, node.port), timeout=300) as connection:
        return connection.recv(4)


def published(engine: Any, spec: ClusterSpec) -> list[int]:
    ports = engine.containers.get(spec.node_name(0)).ports.values()
    return [int(port["HostPort"]) for bindings in ports for port in bindings or []]


def test_a_node_is_reached_at_a_loopback_port_also_when_it_has_another_one(
    engine: Any, spec: ClusterSpec, tmp_path: Path
) -> None:
    provider = LocalProvider(engine)
    node = up(provider, spec, tmp_path)
    assert greeting(node) == b"SSH-"
    assert (node.address, published(engine, spec)) == ("127.0.0.1", [node.port])
    # Without this file, each terminal that logs in shows two complaints of sshd's.
    assert engine.containers.get(node.name).exec_run(["test", "-e", "/var/log/lastlog"]).exit_code == 0
    seen = provider.cluster(spec.name)
    assert seen is not None
    assert [(each.address, each.port) for each in seen.nodes] == [(node.address, node.port)]
    engine.containers.get(node.name).stop(timeout=1)
    stopped = provider.cluster(spec.name)
    assert stopped is not None
    assert [each.address for each in stopped.nodes] == [None]
    (again,) = provider.revive(stopped.nodes, deadline=time.monotonic() + provider.ready_seconds)
    assert greeting(again) == b"SSH-"
