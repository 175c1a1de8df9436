"""Which ranks the others wait for, by how long each has waited."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hvdcloud.runs.reports import RankWaits
from hvdcloud.runs.slow_ranks import slow_ranks, slow_ranks_of
from hvdcloud.runs.state import RunState


def waits(*shares: float, seconds: float = 100.0, per_node: int = 1, recently: float | None = None) -> list[RankWaits]:
    """Of ranks that waited for these parts of their time."""
    return [
        RankWaits(rank=rank, node=f"d-{rank // per_node}", waited=share * seconds, seconds=seconds, recently=recently)
        for rank, share in enumerate(shares)
    ]


@pytest.mark.parametrize(
    ("shares", "slow", "share"),
    [
        ([0.40, 0.02], [1], 0.38),
        ([0.40, 0.41, 0.39, 0.01], [3], 0.39),
        ([0.05, 0.06, 0.45, 0.45], [0, 1], 0.395),
        ([0.0, 0.1, 0.5, 0.5], [0, 1], 0.45),
    ],
)
def test_the_ranks_that_wait_least_are_named(shares: Sequence[float], slow: list[int], share: float) -> None:
    found = slow_ranks(waits(*shares))
    assert found is not None
    assert found.ranks == slow
    assert found.share == pytest.approx(share)


@pytest.mark.parametrize(
    "shares",
    [
        [],
        [0.4],
        # All alike, also where all wait much: for the network.
        [0.30, 0.35, 0.28, 0.33],
        # One waits for all the others: they are not slow, it is fast.
        [0.02, 0.03, 0.02, 0.50],
    ],
)
def test_no_rank_is_named_where_none_holds_the_others_up(shares: Sequence[float]) -> None:
    assert slow_ranks(waits(*shares)) is None


def test_an_active_run_is_judged_by_its_last_minute_and_an_ended_one_by_all_of_it() -> None:
    ranks = [
        RankWaits(rank=0, node="d-0", waited=40.0, seconds=100.0, recently=0.0),
        RankWaits(rank=1, node="d-1", waited=2.0, seconds=100.0, recently=0.5),
    ]
    active, ended = RunState(run="r", state="running", waits=ranks), RunState(run="r", state="done", waits=ranks)
    now, at_last = slow_ranks_of(active), slow_ranks_of(ended)
    assert now is not None
    assert now.text == "rank 0 (d-0): the others wait 50 % of the last minute for it"
    assert at_last is not None
    assert at_last.ranks == [1]
