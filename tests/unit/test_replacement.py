"""Which lost nodes are replaced, and when: the policy that an attached client follows."""

from __future__ import annotations

from hvdcloud.lifecycle.elastic.policy import Pace, ReplacementPolicy

PACE = Pace(confirm=5.0, check=3.0, first_pause=10.0, longest_pause=30.0)
LOST = ("digits-1", "digits-2")


def test_a_node_is_replaced_when_it_has_been_lost_for_long_enough() -> None:
    policy = ReplacementPolicy(PACE)
    policy.note_lost(["digits-1"], now=0.0)
    assert policy.due(now=4.9) == []
    assert policy.due(now=5.0) == ["digits-1"]


def test_a_node_that_came_back_starts_over_when_it_is_lost_again() -> None:
    policy = ReplacementPolicy(PACE)
    policy.note_lost(["digits-1"], now=0.0)
    policy.note_lost([], now=4.0)
    policy.note_lost(["digits-1"], now=5.0)
    assert policy.due(now=9.9) == []
    assert policy.due(now=10.0) == ["digits-1"]


def test_what_was_seen_once_is_not_replaced_however_short_the_confirmation() -> None:
    policy = ReplacementPolicy(Pace())
    policy.note_lost(["digits-1"], now=7.0)
    assert policy.due(now=7.0) == []


def test_what_has_stopped_needs_no_confirmation() -> None:
    policy = ReplacementPolicy(PACE)
    policy.note_lost(["digits-1"], now=0.0, certain=["digits-1"])
    assert policy.due(now=0.0) == ["digits-1"]
    policy.note_lost(["digits-1"], now=1.0)
    assert policy.due(now=1.0) == [], "it was deleted: gone is not stopped"


def test_all_lost_nodes_are_replaced_together() -> None:
    policy = ReplacementPolicy(PACE)
    policy.note_lost(["digits-2"], now=0.0)
    policy.note_lost(LOST, now=4.0)
    assert policy.due(now=4.0) == []
    assert policy.due(now=5.0) == [*LOST]


def test_the_head_and_a_node_beyond_the_runs_maximum_are_left_alone() -> None:
    policy = ReplacementPolicy(PACE)
    names = [f"digits-{index}" for index in range(12)]
    policy.note_lost(names, now=0.0, certain=names)
    assert policy.due(now=0.0, most=4) == ["digits-1", "digits-2", "digits-3"]
    assert "digits-0" not in policy.due(now=0.0)
    assert "digits-11" in policy.due(now=0.0)
