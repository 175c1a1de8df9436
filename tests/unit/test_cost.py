"""What a run came to, as it is said; sums by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from hvdcloud.cluster.cost import Cost, Meter
from hvdcloud.cluster.model import Cluster
from tests.support import views

NOW = datetime(2026, 11, 20, 10, 0, 0, tzinfo=timezone.utc)


class Clock:
    """It is NOW until the test changes it."""

    def __init__(self) -> None:
        self.seconds = NOW.timestamp()

    def __call__(self) -> float:
        return self.seconds


def cluster(*, age: float, so_far: float) -> Cluster:
    """Of two nodes at $0.92/h."""
    born = NOW - timedelta(seconds=age)
    # Before the first question to the cloud; it is the VMs' own creation that counts.
    created = born - timedelta(seconds=600)
    return views.cluster(created=created, dollars_per_hour=0.92, dollars_so_far=so_far, costs_since=born)


def test_the_line_at_the_end() -> None:
    # 0.92 x 432 / 3600 = 0.1104
    cost = Cost(dollars=0.1104, dollars_per_hour=0.92, seconds=432.0, nodes=2)
    assert cost.line == "cost: $0.11 for 2 nodes, 7 min 12 s at $0.92/h"
    assert replace(cost, nodes=1).line == "cost: $0.11 for 1 node, 7 min 12 s at $0.92/h"


def test_what_comes_after_the_last_observation_is_counted_too() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.observe(cluster(age=432.0, so_far=0.1104))
    clock.seconds += 36.0
    cost = meter.read()
    assert cost is not None
    # 36 s at 0.92 $/h are 0.0092 $.
    assert cost.dollars == pytest.approx(0.1104 + 0.0092)
    assert cost.seconds == pytest.approx(468.0)


def test_what_a_replaced_node_has_cost_is_not_forgotten() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.observe(cluster(age=432.0, so_far=0.1104))
    clock.seconds += 36.0
    # One of the two is new: what exists has cost less than what existed.
    meter.observe(cluster(age=468.0, so_far=0.06))
    # Both are gone but one.
    meter.observe(replace(cluster(age=468.0, so_far=0.0598), nodes=(), dollars_per_hour=0.46))
    cost = meter.read()
    assert cost is not None
    assert cost.dollars == pytest.approx(0.1196)
    assert cost.nodes == 2
    # More nodes than before.
    meter.observe(replace(cluster(age=468.0, so_far=0.12), dollars_per_hour=1.38))
    cost = meter.read()
    assert cost is not None
    assert cost.dollars_per_hour == 1.38


def test_a_minute_that_counts_whole_is_not_counted_twice() -> None:
    clock = Clock()
    meter = Meter(clock)
    # 20 s old: its first minute is 0.92 x 60 / 3600 = 0.01533, and nothing comes to it for 40 s more.
    young = cluster(age=20.0, so_far=0.92 * 60 / 3600)
    meter.observe(replace(young, paid_until=NOW + timedelta(seconds=40)))
    clock.seconds += 40.0
    cost = meter.read()
    assert cost is not None
    assert cost.dollars == 0.92 * 60 / 3600
    assert cost.seconds == pytest.approx(60.0)
    clock.seconds += 36.0
    cost = meter.read()
    assert cost is not None
    assert cost.dollars == pytest.approx(0.92 * 60 / 3600 + 0.0092)


def test_the_clusters_of_all_attempts_are_counted_together() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.observe(cluster(age=432.0, so_far=0.1104))
    clock.seconds += 36.0
    # 0.1104 + 36 s at 0.92 $/h = 0.1196
    assert meter.close() == pytest.approx(0.1196)
    assert (meter.cluster, meter.read()) == (None, None)
    # Between two attempts nothing exists.
    clock.seconds += 3600.0
    meter.observe(replace(cluster(age=-3636.0, so_far=0.0), costs_since=NOW + timedelta(seconds=3636)))
    clock.seconds += 72.0
    cost = meter.read()
    assert cost is not None
    assert cost.dollars == pytest.approx(0.1196 + 0.0184)
    assert cost.earlier_dollars == pytest.approx(0.1196)
    assert cost.line == "cost: $0.14 for 2 nodes, 1 min 12 s at $0.92/h; $0.12 of it for earlier attempts"
    # It had grown meanwhile, as its provider says.
    assert meter.close(at_least=0.5) == pytest.approx(0.5)
