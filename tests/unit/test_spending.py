"""Where the money went: each second that was billed has one category. Sums by hand; a node costs $3.60/h, $0.001/s."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from hvdcloud.cluster.cost import Meter
from hvdcloud.cluster.model import Billed, Cluster
from hvdcloud.cluster.record import ClusterRecord, MemberRecord
from hvdcloud.cluster.spending import (
    CATEGORIES,
    NodeTimes,
    RunTimes,
    Segment,
    divide,
    merged,
    node_times,
    run_times,
    spent_text,
)
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.state import Event, RunState

BORN = 1_700_000_000.0
RUN = "20231114-221640-abcdef"
BOOT = {"host": BORN + 20, "login": BORN + 28, "pull": BORN + 30, "driver": BORN + 90, "start": BORN + 100}
STATE: dict[str, Any] = {
    "run": RUN,
    "state": "done",
    "nodes": ["digits-0", "digits-1"],
    "started": BORN + 200,
    "launched": BORN + 205,
    "training_since": BORN + 210,
    "training_until": BORN + 510,
    "ended": BORN + 520,
    "ranks": [
        {"rank": 0, "node": "digits-0", "exit_code": 0, "ended": BORN + 510},
        {"rank": 1, "node": "digits-1", "exit_code": 0, "ended": BORN + 410},
    ],
}


def node(number: int, **changes: Any) -> Billed:
    part = Billed(node=f"digits-{number}", since=BORN, dollars_per_hour=3.6, least=60)
    return replace(part, **changes)


def booted(number: int) -> NodeTimes:
    return NodeTimes(node=f"digits-{number}", joined=BORN + 110, boot=BOOT)


def times(*, events: list[Event] | None = None, **changes: Any) -> RunTimes:
    found = run_times(RunState.from_json({**STATE, **changes}), events or ())
    assert found is not None
    return found


def table(spent: tuple[Segment, ...]) -> dict[str, tuple[float, float]]:
    return {each.category: (round(each.seconds, 3), round(each.dollars, 6)) for each in spent}


def test_a_whole_life_of_two_nodes() -> None:
    spent = divide(
        [node(0), node(1)], now=BORN + 550, nodes=[booted(0), booted(1)], runs=[times()], teardown=BORN + 530
    )
    # digits-1's only rank ended 100 s before the last one.
    assert table(spent) == {
        "boot": (56, 0.056),  # 2 x 28, until the login
        "image": (124, 0.124),  # 2 x (90 - 28)
        "driver": (20, 0.02),  # 2 x (100 - 90)
        "start": (40, 0.04),  # 2 x ((110 - 100) + (210 - 200))
        "training": (500, 0.5),  # 300 + 200
        "waiting for ranks": (100, 0.1),
        "upload": (20, 0.02),  # 2 x 10
        "idle": (200, 0.2),  # 2 x ((200 - 110) + (530 - 520))
        "teardown": (40, 0.04),  # 2 x 20
    }
    assert sum(each.seconds for each in spent) == pytest.approx(2 * 550)
    assert sum(each.dollars for each in spent) == pytest.approx(1.10)
    assert spent_text(spent) == (
        "of it: boot 56.0 s ($0.06), driver 20.0 s ($0.02), image 2 min 04 s ($0.12), start 40.0 s ($0.04), "
        "training 8 min 20 s ($0.50), waiting for ranks 1 min 40 s ($0.10), upload 20.0 s ($0.02), "
        "idle 3 min 20 s ($0.20), teardown 40.0 s ($0.04)"
    )


def test_parts_of_less_than_a_cent_are_shown_without_dollars() -> None:
    spent = divide([node(0, least=0)], now=BORN + 6.5, nodes=[NodeTimes(node="digits-0", joined=BORN + 1.5)])
    # 1.5 s and 5 s at $0.001 a second.
    assert table(spent) == {"boot": (1.5, 0.0015), "idle": (5, 0.005)}
    assert spent_text(spent) == "of it: boot 1.5 s, idle 5.0 s ($0.01)"


def test_vms_made_at_different_times_count_each_with_its_own() -> None:
    late = Billed(node="digits-1", since=BORN + 40, dollars_per_hour=7.2)
    spent = divide([node(0), late], now=BORN + 550, nodes=[booted(0), booted(1)], runs=[times()])
    # digits-0: 550 s at $0.001, digits-1: 510 s at $0.002; that one was made while its peer's image was pulled.
    assert sum(each.seconds for each in spent) == pytest.approx(550 + 510)
    assert sum(each.dollars for each in spent) == pytest.approx(0.55 + 1.02)
    assert table(spent)["boot"] == (28, 0.028)
    assert table(spent)["image"] == (62 + 50, 0.062 + 0.1)


def test_a_node_that_was_replaced_ends_when_its_successor_begins() -> None:
    new = Billed(node="digits-1", since=BORN + 350, dollars_per_hour=3.6, least=60)
    parts = merged([node(0), node(1)], [node(0), new])
    assert {(each.node, each.since - BORN, each.until) for each in parts} == {
        ("digits-0", 0, None),
        ("digits-1", 0, BORN + 350),
        ("digits-1", 350, None),
    }
    events = [
        Event(at=BORN + 300, name="world", ranks=0, nodes=0),
        Event(at=BORN + 340, name="world", ranks=1, nodes=1),
        Event(at=BORN + 400, name="node joins", node="digits-1"),
    ]
    run = times(events=events, elastic={"min": 1, "max": 2})
    spent = divide(parts, now=BORN + 520, nodes=[booted(0), booted(1)], runs=[run])
    found = table(spent)
    # No rank trained from 300 to 340 on two nodes; the successor booted from 350 to 400.
    assert found["waiting for ranks"] == (80, 0.08)
    assert found["boot"] == (28 + 28 + 50, 0.106)
    # digits-0: 300 - 40; its peer: 350 - 210 - 40; the successor: 510 - 400
    assert found["training"] == (260 + 100 + 110, 0.47)
    assert sum(each.seconds for each in spent) == pytest.approx(2 * 520)


def test_one_that_is_gone_counts_on_since_nothing_says_when_it_went() -> None:
    assert merged([node(0), node(1)], [node(0)]) == (node(1), node(0))


def test_what_nothing_is_written_of_is_unaccounted() -> None:
    # From another laptop, with images of an earlier version.
    bare = times(launched=None, training_since=None, training_until=None, ranks=[])
    spent = divide([node(0)], now=BORN + 550, runs=[bare])
    assert table(spent) == {"unaccounted": (520, 0.52), "idle": (30, 0.03)}
    assert table(divide([node(0)], now=BORN + 550, runs=[bare], all_runs=False)) == {"unaccounted": (550, 0.55)}


def test_a_node_that_came_while_the_run_was_active_and_never_told_when_it_joined_is_unaccounted() -> None:
    late = Billed(node="digits-1", since=BORN + 300, dollars_per_hour=3.6)
    assert table(divide([late], now=BORN + 520, runs=[times()])) == {"unaccounted": (220, 0.22)}


def test_a_cluster_without_a_run_is_idle() -> None:
    found = table(divide([node(0)], now=BORN + 500, nodes=[booted(0)]))
    assert found["idle"] == (390, 0.39)
    assert "training" not in found


def test_the_wait_for_data_is_counted_apart_from_the_start() -> None:
    data = [NodeData(node="digits-0", phase="ready").to_json()]
    run = times(data=data, data_seconds=4.0, nodes=["digits-0"])
    found = table(divide([node(0)], now=BORN + 520, nodes=[booted(0)], runs=[run]))
    # start: 100 to 110, 200 to 201 and 205 to 210
    assert (found["data"], found["start"]) == ((4, 0.004), (16, 0.016))
    waiting = times(data=data, launched=None, training_since=None, training_until=None, ended=None, state="starting")
    assert table(divide([node(0)], now=BORN + 230, nodes=[booted(0)], runs=[waiting]))["data"] == (30, 0.03)


def waits(*seconds: float) -> list[dict[str, Any]]:
    """Of one rank on each node, by when the first of 300 s had passed without a collective yet."""
    return [
        {"rank": rank, "node": f"digits-{rank}", "waited": each, "seconds": 290.0} for rank, each in enumerate(seconds)
    ]


def test_the_waits_for_a_slow_rank_are_no_training() -> None:
    both = [{"rank": rank, "node": f"digits-{rank}", "ended": BORN + 510} for rank in (0, 1)]
    run = times(waits=waits(130.0, 10.0), ranks=both)
    found = table(divide([node(0), node(1)], now=BORN + 520, nodes=[booted(0), booted(1)], runs=[run]))
    # digits-0 waited 130 s, of which 10 s are what digits-1, the slow one, waits as well.
    assert (found["waiting for ranks"], found["training"]) == ((120, 0.12), (300 - 120 + 300, 0.48))
    # At twice the price, the same seconds cost twice as much.
    dear = divide([node(0, dollars_per_hour=7.2), node(1)], now=BORN + 520, nodes=[booted(0), booted(1)], runs=[run])
    assert (table(dear)["waiting for ranks"], table(dear)["training"]) == ((120, 0.24), (480, 0.66))
    assert sum(each.dollars for each in dear) == pytest.approx(1.04 + 0.52)


def test_waits_of_a_part_of_the_training_are_divided_by_its_length() -> None:
    # digits-0 is billed in two parts, each with half of its training, and so with half of its waits.
    run = times(waits=waits(130.0, 10.0))
    halves = [node(0, until=BORN + 360), node(0, since=BORN + 360)]
    once = divide([node(0)], now=BORN + 520, nodes=[booted(0)], runs=[run])
    assert table(once)["waiting for ranks"] == (120, 0.12)
    parts = [divide([half], now=BORN + 520, nodes=[booted(0)], runs=[run], all_runs=False) for half in halves]
    assert table(parts[0])["waiting for ranks"] == (60, 0.06)


def test_no_more_is_waited_than_was_trained_and_nothing_without_a_slow_rank() -> None:
    endless = [{**each, "waited": each["waited"] * 50, "seconds": 29_000.0} for each in waits(200.0, 1.0)]
    run = times(waits=endless)
    assert table(divide([node(0)], now=BORN + 520, nodes=[booted(0)], runs=[run]))["waiting for ranks"] == (300, 0.3)
    for alike in (waits(60.0, 60.0), waits(60.0), []):
        alone = times(waits=alike)
        assert "waiting for ranks" not in table(divide([node(0)], now=BORN + 520, nodes=[booted(0)], runs=[alone]))


def test_a_run_that_is_active_trains_until_now() -> None:
    run = times(state="running", training_until=None, ended=None, ranks=[])
    assert table(divide([node(0)], now=BORN + 400, nodes=[booted(0)], runs=[run]))["training"] == (190, 0.19)


def test_a_run_whose_supervisor_was_killed_trained_until_its_ranks_ended() -> None:
    run = times(training_until=None)
    found = table(divide([node(0)], now=BORN + 520, nodes=[booted(0)], runs=[run]))
    assert found["training"] == (300, 0.3)
    # Its agents then saved what there was.
    assert found["upload"] == (10, 0.01)


def test_a_node_that_takes_no_part_in_a_run_is_idle_meanwhile() -> None:
    run = times(nodes=["digits-0"])
    assert table(divide([node(1)], now=BORN + 520, nodes=[booted(1)], runs=[run]))["idle"] == (410, 0.41)


def test_a_node_that_is_off_costs_its_disk_and_a_loose_disk_is_no_node() -> None:
    off = Billed(node="digits-0", since=BORN + 200, dollars_per_hour=0.36, off=True)
    loose = Billed(node="", since=BORN, dollars_per_hour=0.36)
    spent = divide([node(0, until=BORN + 200), off, loose], now=BORN + 300, nodes=[booted(0)], teardown=BORN + 250)
    found = table(spent)
    assert (found["off"], found["unaccounted"]) == ((100, 0.01), (300, 0.03))
    assert sum(each.dollars for each in spent) == pytest.approx(0.2 + 0.01 + 0.03)


def test_the_first_minute_is_billed_whole() -> None:
    spent = divide([node(0)], now=BORN + 12, nodes=[], teardown=BORN + 10)
    assert table(spent) == {"teardown": (50, 0.05), "unaccounted": (10, 0.01)}


@pytest.mark.parametrize("seed", range(40))
def test_the_parts_add_up_to_what_was_billed_whatever_the_clocks_said(seed: int) -> None:
    chance = random.Random(seed)

    def moment() -> float:
        return BORN + chance.uniform(-300, 900)

    def maybe() -> float | None:
        return chance.choice([None, moment()])

    runs = [
        RunTimes(
            run=f"r{number}",
            started=moment(),
            data_since=maybe(),
            launched=maybe(),
            training_since=maybe(),
            training_until=maybe(),
            ended=maybe(),
            over=chance.random() < 0.7,
            last_ranks={"digits-0": moment()},
            without_ranks=[(moment(), maybe())],
            joins=[("digits-1", moment())],
            waited={"digits-0": chance.uniform(0, 900)},
        )
        for number in range(3)
    ]
    parts = [node(0), node(1, until=moment()), node(2, since=moment(), off=True)]
    nodes = [NodeTimes(node="digits-0", joined=moment(), boot={step: moment() for step in BOOT}), booted(1)]
    spent = divide(parts, now=BORN + 600, nodes=nodes, runs=runs, teardown=maybe())
    assert sum(each.seconds for each in spent) == pytest.approx(
        sum(each.seconds(BORN + 600) for each in parts), abs=0.01
    )
    assert sum(each.dollars for each in spent) == pytest.approx(
        sum(each.dollars(BORN + 600) for each in parts), abs=1e-5
    )
    assert all(each.seconds > 0 for each in spent)
    assert [each.category for each in spent] == [each for each in CATEGORIES if each in table(spent)]


def test_the_meter_sums_what_each_look_saw() -> None:
    clock = [BORN + 100]
    meter = Meter(lambda: clock[0])
    first = Cluster(
        name="digits",
        id="abcdef",
        owner="ada",
        provider="gce",
        created=datetime.fromtimestamp(BORN, timezone.utc),
        expected_nodes=2,
        nodes=(),
        image="i",
        bucket="gs://b",
        dollars_per_hour=7.2,
        billed=(node(0), node(1)),
    )
    meter.observe(first, ClusterRecord(id="abcdef", nodes=(MemberRecord(name="digits-0", joined=BORN + 90),)))
    clock[0] = BORN + 500
    new = Billed(node="digits-1", since=BORN + 350, dollars_per_hour=3.6, least=60)
    meter.observe(replace(first, billed=(node(0), new)))
    cost = meter.read(now=BORN + 600)
    assert cost is not None
    # 600 s, 350 s and 250 s
    assert cost.dollars == pytest.approx(0.6 + 0.35 + 0.25)
    assert sum(each.dollars for each in cost.spent) == pytest.approx(1.2)
    assert cost.lines == [cost.summary, f"  {spent_text(cost.spent)}"]


def test_the_record_tells_of_nodes_that_were_seen_to_join() -> None:
    members = (MemberRecord(name="digits-0", joined=BORN + 110, boot=BOOT), MemberRecord(name="digits-1"))
    assert node_times(ClusterRecord(id="abc", nodes=members)) == [booted(0)]
    assert node_times(None) == []
