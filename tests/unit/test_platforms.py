"""What a provider says of a cluster."""

from __future__ import annotations

import pytest

from hvdcloud.cluster.model import ClusterObject, ObjectKind
from tests.support.views import cluster


@pytest.mark.parametrize(
    ("kinds", "remnant"),
    [
        ((ObjectKind.FIREWALL, ObjectKind.NETWORK, ObjectKind.GROUP, ObjectKind.TEMPLATE), True),
        ((ObjectKind.TEMPLATE, ObjectKind.REQUEST), False),
        ((ObjectKind.FIREWALL, ObjectKind.DISK), False),
        ((ObjectKind.OPERATION,), False),
        ((ObjectKind.VOLUME,), False),
    ],
)
def test_only_what_holds_and_costs_nothing_is_a_remnant(kinds: tuple[ObjectKind, ...], remnant: bool) -> None:
    found = cluster(nodes=(), other_objects=tuple(ClusterObject(kind, "x") for kind in kinds))
    assert found.is_remnant is remnant
    assert list(found.other_objects) == [f"{kind.value} x" for kind in kinds]
