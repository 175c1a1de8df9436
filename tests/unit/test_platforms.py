"""What a provider says of a cluster."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from hvdcloud.cluster.model import Cluster, ClusterObject, ObjectKind


@pytest.mark.parametrize(
    ("kinds", "remnant"),
    [
        ((ObjectKind.FIREWALL, ObjectKind.NETWORK), True),
        ((ObjectKind.FIREWALL, ObjectKind.DISK), False),
        ((ObjectKind.OPERATION,), False),
        ((ObjectKind.VOLUME,), False),
    ],
)
def test_only_what_holds_and_costs_nothing_is_a_remnant(kinds: tuple[ObjectKind, ...], remnant: bool) -> None:
    cluster = Cluster(
        name="t",
        id="abc123",
        owner="me",
        provider="gce",
        created=datetime.now(timezone.utc),
        expected_nodes=2,
        nodes=(),
        image="",
        bucket="",
        other_objects=tuple(ClusterObject(kind, "x") for kind in kinds),
    )
    assert cluster.is_remnant is remnant
    assert list(cluster.other_objects) == [f"{kind.value} x" for kind in kinds]
