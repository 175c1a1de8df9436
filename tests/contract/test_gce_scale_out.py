"""Nodes that come to a cluster on Compute Engine later: where, for how long, and what a failure leaves."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.model import LimitsConfig
from hvdcloud.errors import CapacityError, NameTakenError, UsageError
from hvdcloud.providers.base import NodeProgress
from hvdcloud.providers.gce.provider import GceProvider
from tests.support.gce_bench import BULK_INSERT, DELETE, Bench
from tests.support.harness import until

ZONE = "us-central1-b"


@pytest.fixture
def provider(bench: Bench) -> GceProvider:
    """Two nodes end two hours after they were made, and may cost five dollars."""
    return bench.another(zones=[ZONE], limits=LimitsConfig.model_validate({"max_run_duration": "2h", "max_cost": 5}))


@pytest.fixture
def spec(bench: Bench, provider: GceProvider) -> Iterator[ClusterSpec]:
    """A cluster of two nodes; nothing of it is left after the test."""
    spec = bench.spec()
    bench.create(spec, provider)
    yield spec
    bench.emulator.faults.clear()
    assert list(provider.destroy(spec.name)) == []


def larger(spec: ClusterSpec, nodes: int) -> ClusterSpec:
    return dataclasses.replace(spec, nodes=nodes)


def vms(bench: Bench) -> dict[str, dict[str, Any]]:
    """By their names' last parts."""
    return {vm["name"].rpartition("-")[2]: vm for vm in bench.emulator.state.instances()}


def test_new_nodes_are_where_the_others_are_and_live_no_longer(bench: Bench, spec: ClusterSpec) -> None:
    # Another laptop's file names other zones, and more time.
    provider = bench.another(limits=LimitsConfig.model_validate({"max_run_duration": "12h"}))
    plan = provider.plan_growth(larger(spec, 3), [2])
    assert plan.zones == (ZONE,)
    assert len(plan.requests) == 1
    provider.grow(larger(spec, 3), [2])
    new = vms(bench)["2"]
    assert new["zone"].endswith(ZONE)
    assert 7000 < int(new["scheduling"]["maxRunDuration"]["seconds"]) <= 7200 - 60
    assert new["tags"]["items"] == vms(bench)["1"]["tags"]["items"]
    (found,) = provider.list().clusters
    assert plan.dollars_per_hour == pytest.approx(found.dollars_per_hour)
    assert found.worst_case_dollars is not None
    assert plan.worst_case_dollars is not None
    assert found.worst_case_dollars <= plan.worst_case_dollars * 1.02


def test_growth_keeps_to_max_cost_with_what_the_others_may_cost(
    bench: Bench, provider: GceProvider, spec: ClusterSpec
) -> None:
    (found,) = provider.list().clusters
    assert found.worst_case_dollars is not None
    limit = found.worst_case_dollars + 0.2
    frugal = bench.another(
        zones=[ZONE], limits=LimitsConfig.model_validate({"max_run_duration": "2h", "max_cost": limit})
    )
    plan = frugal.plan_growth(larger(spec, 3), [2])
    assert plan.worst_case_dollars is not None
    assert plan.worst_case_dollars <= limit + 0.01
    assert plan.seconds is not None
    assert plan.seconds < 7000
    poor = bench.another(zones=[ZONE], limits=LimitsConfig.model_validate({"max_cost": found.worst_case_dollars}))
    with pytest.raises(UsageError, match="leaves"):
        poor.plan_growth(larger(spec, 3), [2])


def test_no_room_leaves_the_others_and_nothing_new(bench: Bench, provider: GceProvider, spec: ClusterSpec) -> None:
    bench.fail({"stockout": {"after": 1}}, method=BULK_INSERT)
    with pytest.raises(CapacityError):
        provider.grow(larger(spec, 4), [2, 3])
    assert sorted(vms(bench)) == ["0", "1"]
    (found,) = provider.list().clusters
    assert found.whole


def test_giving_up_while_nodes_are_made_leaves_none(bench: Bench, provider: GceProvider, spec: ClusterSpec) -> None:
    def give_up(progress: NodeProgress) -> None:
        if progress.step == "created":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        provider.grow(larger(spec, 3), [2], on_progress=give_up)
    assert sorted(vms(bench)) == ["0", "1"]


def test_shrink_waits_for_what_a_killed_grow_makes(bench: Bench, provider: GceProvider, spec: ClusterSpec) -> None:
    bench.fail({"slow": 1.0}, method=BULK_INSERT)
    growing = threading.Thread(target=lambda: provider.grow(larger(spec, 3), [2]), daemon=True)
    growing.start()
    until(lambda: len(vms(bench)) > 2, what="the new VM to be on its way")
    assert list(bench.another(zones=[ZONE]).shrink(spec.name, [2])) == []
    assert sorted(vms(bench)) == ["0", "1"]


def test_of_two_that_grow_at_the_same_moment_the_loser_touches_nothing_of_the_winners(
    bench: Bench, provider: GceProvider, spec: ClusterSpec
) -> None:
    late = provider.plan_growth(larger(spec, 3), [2])
    bench.another(zones=[ZONE]).grow(larger(spec, 3), [2])
    before = {name: vm["id"] for name, vm in vms(bench).items()}
    assert sorted(before) == ["0", "1", "2"]
    with pytest.raises(NameTakenError, match=f"the name {spec.node_name(2)} is taken"):
        provider.create(late)
    assert {name: vm["id"] for name, vm in vms(bench).items()} == before
    assert bench.calls()[DELETE] == 0
