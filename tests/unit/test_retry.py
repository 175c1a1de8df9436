"""`run.retry`: which ends are followed by another attempt, and what is left for it; sums by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from hvdcloud.runs.retry import Attempt, Within, left, refusal, was_lost

NOW = datetime(2026, 11, 24, tzinfo=timezone.utc)
FIRST = Attempt(
    run="20261124-081000-aaaaaa",
    lost=True,
    reason="node digits-1 was lost",
    seconds=720.0,
    dollars=0.31,
)
SECOND = replace(FIRST, run="20261124-090000-bbbbbb", dollars=0.26)


@pytest.mark.parametrize("result", ["succeeded", "failed", "stopped", "running", ""])
def test_only_a_run_that_was_lost_is_tried_again(result: str) -> None:
    assert not was_lost(result=result, elastic=False, nodes_lost=["digits-1"])
    assert was_lost(result="lost", elastic=False, nodes_lost=["digits-1"])
    # A node that was preempted had uploaded everything and ended its part before it was gone.
    assert was_lost(result="lost", elastic=False, nodes_lost=[])


def test_an_elastic_run_is_tried_again_only_if_nodes_are_missing() -> None:
    assert was_lost(result="lost", elastic=True, nodes_lost=["digits-1", "digits-2"])
    # A full disk of the head, say.
    assert not was_lost(result="lost", elastic=True, nodes_lost=[])


def test_all_attempts_share_the_money_to_the_cent_and_the_time() -> None:
    found = left([FIRST, SECOND], ends=NOW + timedelta(hours=1), max_cost=2.0)
    assert round(found.max_dollars or 0.0, 2) == 1.43
    assert found.seconds(NOW) == 3600
    over = left([FIRST, SECOND], ends=NOW - timedelta(seconds=1), max_cost=0.5)
    assert (over.seconds(NOW), over.max_dollars) == (0.0, 0.0)
    assert left([FIRST], ends=NOW, max_cost=None) == Within(ends=NOW, max_dollars=None)
    assert left([replace(FIRST, dollars=None)], ends=NOW, max_cost=2.0).max_dollars == 2.0


def within(seconds: float, dollars: float | None) -> Within:
    return Within(ends=NOW + timedelta(seconds=seconds), max_dollars=dollars)


def why_not(**changed: Any) -> str | None:
    given: dict[str, Any] = {
        "attempts": 1,
        "most": 3,
        "left": within(3600.0, 1.43),
        "dollars_per_hour": 1.50,
        "now": NOW,
    }
    return refusal(**{**given, **changed})


def test_a_run_is_tried_again_as_often_as_max_says() -> None:
    assert why_not(attempts=3) is None
    assert why_not(attempts=4) == "it was tried again 3 times, which is run.retry"
    assert why_not(attempts=2, most=1) == "it was tried again 1 time, which is run.retry"


def test_no_attempt_begins_that_the_money_does_not_last_for() -> None:
    # Two minutes at $1.50/h are five cents.
    assert why_not(left=within(3600.0, 0.05)) is None
    assert why_not(left=within(3600.0, 0.049)) == ("of limits.max_cost, which all attempts share, $0.05 is left")
    assert why_not(left=within(3600.0, 0.0), dollars_per_hour=0.0) is None
    assert why_not(left=within(3600.0, None)) is None


def test_no_attempt_begins_that_the_time_does_not_last_for() -> None:
    assert why_not(left=within(120.0, None)) is None
    assert why_not(left=within(119.0, None)) == (
        "of limits.max_run_duration, which all attempts share, 1 min 59 s are left"
    )
