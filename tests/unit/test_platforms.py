"""What every kind of provider says of a configuration, before anything is connected."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from hvdcloud.cluster.model import Cluster, ClusterObject, ObjectKind
from hvdcloud.providers import platform
from tests.support.configs import load_config


@pytest.mark.parametrize("provider", ["local", "ssh", "gce"])
def test_keys_that_only_a_new_cluster_applies_are_keys_of_the_file(provider: str, tmp_path: Path) -> None:
    hosts = "ssh: {hosts: [gpu1, gpu2]}" if provider == "ssh" else ""
    (tmp_path / "hvdcloud.yaml").write_text(f"name: t\nprovider: {provider}\n{hosts}\ngce: {{project: my-project}}\n")
    config = load_config(tmp_path / "hvdcloud.yaml", flags={}, environ={})
    fixed, tree = platform(config).fixed_keys(), config.model_dump()
    assert all(keys and keys <= tree[section].keys() for section, keys in fixed.items())
    # What nodes or Google keep by themselves, a running cluster does not read again.
    assert fixed["limits"] >= ({"idle"} if provider == "local" else {"idle", "max_run_duration"})


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
