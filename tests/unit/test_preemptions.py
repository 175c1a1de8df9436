"""What earlier runs tell of preemptions; sums by hand."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.runs.preemptions import Preemptions, observed
from hvdcloud.runs.state import RunState

BEGAN = 1_800_000_000.0


def ran(hours: float, *, spot: Any = 2, preempted: tuple[str, ...] = (), **changes: Any) -> RunState:
    """A run of three nodes."""
    nodes = [f"digits-{index}" for index in range(3)]
    times = {"started": BEGAN, "ended": BEGAN + hours * 3600}
    about = {"provider": "gce", "spot_nodes": spot}
    values = {"run": "r", "nodes": nodes, **times, "about": about, "nodes_preempted": list(preempted)}
    return RunState.from_json({**values, **changes})


def test_preempted_nodes_and_hours_of_spot_nodes_are_added_up() -> None:
    seen = observed([ran(10), ran(0.5, preempted=("digits-1",)), ran(4, spot=3, preempted=("digits-0", "digits-2"))])
    assert seen == Preemptions(count=3, node_hours=20 + 1 + 12)
    assert seen.text == "3 preemptions in 33 node-hours"


@pytest.mark.parametrize(
    "state",
    [
        ran(5, spot=0),
        ran(5, about={"provider": "gce"}),
        ran(5, about={"provider": "gce", "spot_nodes": "many"}),
        ran(5, spot=-4),
        ran(5, ended=None),
        ran(5, started=None),
        ran(-5),
        ran(5, nodes=[]),
        RunState(),
    ],
)
def test_a_run_without_spot_nodes_or_a_known_end_tells_nothing(state: RunState) -> None:
    assert observed([state]) == Preemptions(count=0, node_hours=0.0)


def test_a_run_has_no_more_spot_nodes_than_nodes() -> None:
    assert observed([ran(2, spot=1_000_000)]).node_hours == 6


@pytest.mark.parametrize(
    ("count", "node_hours", "nodes", "hours"),
    [
        (3, 41.0, 2, 41 / 6),
        (1, 41.0, 1, 41.0),
        # An hour is the least that says something, and half an hour what an estimate is made with.
        (1, 0.9, 2, None),
        (1, 1.0, 1, 1.0),
        (4, 1.0, 1, 0.5),
        # None in 41 hours of two nodes is better than one in 6, and counts as one; none in 5 says nothing yet.
        (0, 41.0, 2, 20.5),
        (0, 5.0, 1, None),
        (0, 0.0, 2, None),
        (2, 0.0, 2, None),
    ],
)
def test_hours_from_one_preemption_of_a_cluster_to_the_next(
    count: int, node_hours: float, nodes: int, hours: float | None
) -> None:
    found = Preemptions(count=count, node_hours=node_hours).hours_between(nodes)
    assert found == (None if hours is None else pytest.approx(hours))


@pytest.mark.parametrize(
    ("count", "node_hours", "text"),
    [
        (0, 41.2, "no preemption in 41 node-hours"),
        (1, 0.26, "1 preemption in 0.3 node-hours"),
        (12, 1234.5, "12 preemptions in 1,234 node-hours"),
    ],
)
def test_what_was_seen_in_words(count: int, node_hours: float, text: str) -> None:
    assert Preemptions(count=count, node_hours=node_hours).text == text
