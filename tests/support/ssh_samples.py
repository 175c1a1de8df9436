"""What `up` asks provider ssh for, and one node's request."""

from __future__ import annotations

from datetime import datetime, timezone

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.providers.engine.requests import limits
from hvdcloud.providers.ssh.requests import HostRequest, node_request

SPEC = ClusterSpec(
    name="digits",
    id="abc123",
    owner="ada",
    nodes=2,
    image="hvdcloud/project:1",
    bucket="file:///home/ada/bucket",
    authorized_key="ssh-ed25519 AAAA",
    created=datetime(2026, 11, 1, tzinfo=timezone.utc),
)


def request(
    spec: ClusterSpec, *, idle_seconds: float | None = None, longest_seconds: float | None = None
) -> HostRequest:
    """Node 1's, on host gpu1."""
    return node_request(
        spec,
        1,
        host="gpu1",
        address="192.168.1.8",
        gpus=None,
        environment=limits(idle_seconds=idle_seconds, longest_seconds=longest_seconds),
    )
