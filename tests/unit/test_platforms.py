"""What every kind of provider says of a configuration, before anything is connected."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cli.cluster import plan_lines
from hvdcloud.cluster.model import Cluster, ClusterObject, ClusterSpec, ObjectKind, Plan, Request
from hvdcloud.config.file import load_config
from hvdcloud.providers import platform
from hvdcloud.providers.base import Platform

KINDS = ("local", "gce")


@pytest.fixture(params=KINDS)
def either(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    # Neither an engine nor credentials: no hook may need one.
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    (tmp_path / "hvdcloud.yaml").write_text(f"name: t\nprovider: {request.param}\ngce: {{project: my-project}}\n")
    return platform(load_config(tmp_path / "hvdcloud.yaml", flags={}, environ={}))


def test_nodes_that_cost_money_are_machines_and_are_described(either: Platform) -> None:
    # VMs with GPUs are x86_64, whatever this machine is.
    assert (either.processor == "x86_64") == either.needs_registry
    assert either.costs_money == either.needs_registry == (either.machines() is not None)
    assert either.place.startswith("on ")


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("provider: gce\ngce: {project: my-project, vm_image: cos}", True),
        ("provider: ssh\nssh: {hosts: [gpu1]}", False),
        ("provider: local", False),
    ],
)
def test_layers_are_packed_with_zstd_only_for_engines_that_are_known_to_unpack_it(
    section: str, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "hvdcloud.yaml").write_text(f"name: t\nnodes: 1\n{section}\n")
    config = load_config(tmp_path / "hvdcloud.yaml", flags={}, environ={})
    assert platform(config).unpacks_zstd == expected


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


def plan(either: Platform, config_nodes: int, **more: Any) -> Plan:
    spec = ClusterSpec(
        name="t", id="abcdef", owner="me", nodes=config_nodes, image="i", bucket="file:///b",
        authorized_key="", created=datetime(2026, 11, 22, tzinfo=timezone.utc),
    )  # fmt: skip
    requests = [Request(object=f"thing t-{index}", method="POST /things", body={}) for index in range(config_nodes)]
    return Plan(spec=spec, requests=tuple(requests), **more)


def test_a_dry_run_is_three_lines_and_what_is_worth_knowing(either: Platform) -> None:
    where = "on this machine" if either.machines() is None else "on Compute Engine, n1-standard-8"
    assert plan_lines(plan(either, 1, dollars_per_hour=0.0), either) == [
        f"cluster t: 1 node {where}",
        "1 request: thing t-0; --json prints them",
        "$0.00/h; nothing was changed",
    ]
    dear = plan(either, 64, dollars_per_hour=44.5, worst_case_dollars=1204.0, seconds=43200.0, notices=("T4 ends",))
    assert plan_lines(dear, either) == [
        f"cluster t: 64 nodes {where}",
        "64 requests: thing t-0, thing t-1 and 62 more; --json prints them",
        "note: T4 ends",
        "$44.50/h, at worst $1,204.00 (after 12 h 00 min); nothing was changed",
    ]
