"""What a month has cost, by the records of its clusters. Sums by hand; it is noon of 2026-11-16, UTC."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from hvdcloud.cluster.bills import BadBillError, Bill, EarlierRun, end_of, month_bounds, month_sum, parse_bill
from hvdcloud.cluster.model import Cluster

NOW = datetime(2026, 11, 16, 12, tzinfo=timezone.utc)
HOUR = 3600.0


def at(day: int, hour: float = 0, *, month: int = 11) -> float:
    return (datetime(2026, month, day, tzinfo=timezone.utc) + timedelta(hours=hour)).timestamp()


def bill(number: int = 1, **changes: Any) -> Bill:
    """Of ten hours on the 10th at $2/h, of which it cost three."""
    values: dict[str, Any] = {
        "cluster": "digits", "id": f"{number:06x}", "created": at(10), "ends": at(10, 10), "nodes": 2,
        "dollars_per_hour": 2.0, "worst_case_dollars": 20.0, "ended": at(10, 3), "dollars": 6.0,
    }  # fmt: skip
    return Bill(**{**values, **changes})


def living(number: int, **changes: Any) -> Cluster:
    """Of two hours at $2/h, which ends in three more."""
    values: dict[str, Any] = {
        "name": "letters", "id": f"{number:06x}", "owner": "ada", "provider": "gce",
        "created": NOW - timedelta(hours=2),
        "expected_nodes": 2, "nodes": (), "image": "i", "bucket": "gs://b", "dollars_per_hour": 2.0,
        "dollars_so_far": 4.0, "worst_case_dollars": 10.0, "costs_since": NOW - timedelta(hours=2),
    }  # fmt: skip
    return Cluster(**{**values, **changes})


def run(number: int, **changes: Any) -> EarlierRun:
    values: dict[str, Any] = {
        "cluster": "digits", "id": f"{number:06x}", "began": at(10), "ended": at(10, 4), "dollars": 8.0,
        "nodes_ended": True,
    }  # fmt: skip
    return EarlierRun(**{**values, **changes})


def test_clusters_that_are_gone_count_what_they_cost() -> None:
    month = month_sum([bill(1), bill(2, dollars=1.25)], now=NOW)
    assert (month.month, month.dollars, month.clusters, month.of_living) == ("2026-11", 7.25, 2, 0.0)


def test_one_that_exists_counts_what_it_may_cost_at_worst_also_without_a_record() -> None:
    recorded = bill(1, created=at(16, 10), ended=None, dollars=None, ends=at(16, 15), worst_case_dollars=9.0)
    month = month_sum([recorded], now=NOW, living={"000001": living(1), "000002": living(2)})
    # Not $9: what the provider says of VMs that exist is newer. And it is counted once.
    assert (month.dollars, month.clusters, month.of_living) == (20.0, 2, 20.0)


def test_one_that_nothing_ends_counts_until_the_end_of_the_month() -> None:
    # 14 days and a half at $2/h beside the four dollars: 14.5 x 24 x 2 = 696
    assert month_sum([], now=NOW, living={"1": living(1, worst_case_dollars=None)}).dollars == pytest.approx(700.0)


def test_one_whose_end_nobody_saw_counts_until_its_provider_ended_it() -> None:
    lost = bill(1, ended=None, dollars=None)
    assert month_sum([lost], now=NOW, living={}).dollars == 20.0
    # It began an hour ago, and is not over yet: the other nine hours cannot have been.
    young = bill(1, created=at(16, 11), ends=at(16, 21), ended=None, dollars=None)
    assert month_sum([young], now=NOW, living={}).dollars == pytest.approx(2.0)


def test_one_whose_run_ended_its_nodes_counts_until_two_minutes_later() -> None:
    lost = bill(1, ended=None, dollars=None)
    # (4 h + 120 s) x $2/h
    assert month_sum([lost], now=NOW, runs=[run(1)]).dollars == pytest.approx(8.0667, abs=1e-4)
    # Its nodes stayed after it.
    assert month_sum([lost], now=NOW, runs=[run(1, nodes_ended=False)]).dollars == 20.0


def test_a_run_counts_for_its_cluster_where_that_has_no_record_and_only_there() -> None:
    assert month_sum([bill(1)], now=NOW, runs=[run(1), run(2)]).dollars == 6.0 + 8.0
    assert month_sum([], now=NOW, runs=[run(1)], living={"000001": living(1)}).dollars == 10.0


def test_only_the_share_of_this_month_counts() -> None:
    # From 18:00 on the last of October to 06:00: half of it is in November.
    across = bill(1, created=at(31, 18, month=10), ended=at(1, 6), dollars=24.0)
    assert month_sum([across], now=NOW).dollars == pytest.approx(12.0)
    assert month_sum([bill(1, created=at(2, month=10), ended=at(3, month=10))], now=NOW).clusters == 0
    # It has cost $20 in 20 hours, 12 of them in October, and may cost $10 more.
    morning = datetime(2026, 11, 1, 8, tzinfo=timezone.utc)
    began = morning - timedelta(hours=20)
    old = living(1, created=began, costs_since=began, dollars_so_far=20.0, worst_case_dollars=30.0)
    assert month_sum([], now=morning, living={"1": old}).dollars == pytest.approx(8.0 + 10.0)


def test_months_begin_and_end_in_utc() -> None:
    evening = datetime(2026, 11, 30, 23, 30, tzinfo=timezone(timedelta(hours=-5)))
    first, following = month_bounds(evening)
    assert (first.isoformat(), following.isoformat()) == ("2026-12-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00")


def test_a_record_is_read_as_it_was_written() -> None:
    for each in (bill(), bill(ended=None, dollars=None, ends=None, owner="ada-laptop")):
        assert parse_bill(each.to_json(), name=each.name, source="s") == each
    assert bill().name == ".hvdcloud/clusters/20261110-000000-000001-digits.json"
    later = json.loads(bill().to_json()) | {"version": 1, "a key of a later version": {}}
    assert parse_bill(json.dumps(later).encode(), name=bill().name, source="s") == bill()


def test_a_cluster_that_is_gone_never_costs_more_than_at_worst() -> None:
    open_bill = bill(ended=None, dollars=None)
    assert end_of(open_bill, None, now=at(10, 2)) == (at(10, 2), 4.0)
    assert end_of(open_bill, None, now=at(20)) == (at(10, 10), 20.0)
    assert end_of(replace(open_bill, ends=None), None, now=at(20)) == (at(20), 20.0)
    assert end_of(bill(), None, now=at(20)) == (at(10, 3), 6.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"dollars": -6.0},
        {"dollars_per_hour": -2.0},
        {"worst_case_dollars": float("nan")},
        {"dollars": "6"},
        {"nodes": None},
        {"created": at(10) + 60},
        {"cluster": "letters"},
        {"cluster": "../digits"},
        {"ended": None},
        {"id": "\x1b[2J"},
    ],
)
def test_what_is_no_record_is_an_error_and_not_a_smaller_sum(changes: dict[str, Any]) -> None:
    damaged = json.dumps(json.loads(bill().to_json()) | changes).encode()
    with pytest.raises(BadBillError, match="gs://b/x is not the record of a cluster"):
        parse_bill(damaged, name=bill().name, source="gs://b/x")
    for text in (b"", b"[]", b"{", b"[" * 100_000):
        with pytest.raises(BadBillError):
            parse_bill(text, name=bill().name, source="gs://b/x")


def test_the_newest_of_what_is_known_counts_once() -> None:
    both = month_sum([bill(1)], now=NOW, living={"000001": living(1)}, runs=[run(1), replace(run(1), id="000001")])
    assert (both.dollars, both.clusters) == (10.0, 1)
