"""Whether the workers of an elastic run have found each other, judged from whom they are connected to."""

from __future__ import annotations

import pytest

from hvdcloud.node.elastic.workers import ALONE_SECONDS, FRESH_SECONDS, PARTING_SECONDS, Process
from tests.support.workers import ADDRESSES, end, see, see_all, world


def test_a_world_has_formed_when_everybody_is_connected_to_everybody() -> None:
    made = world()
    assert not made.check_formed(made.nodes(), now=10.0)
    see(made, "d-0", "d-1", "d-2", now=10.0)
    see(made, "d-1", "d-0", "d-2", now=10.0)
    assert not made.check_formed(made.nodes(), now=10.0), "nothing was heard from d-2"
    see(made, "d-2", "d-0", now=10.0)
    assert not made.check_formed(made.nodes(), now=10.0), "d-2 is not connected to d-1"
    see(made, "d-2", "d-1", "d-0", now=10.0)
    assert made.check_formed(made.nodes(), now=10.0)
    assert made.formed


def test_workers_that_are_still_connecting_have_not_met() -> None:
    made = world(2)
    for node, other in (("d-0", "d-1"), ("d-1", "d-0")):
        see(made, node, other, now=10.0, connections=1)
    assert not made.check_formed(made.nodes(), now=10.0), "they may wait for a third one, which is dead"


def test_every_two_ranks_of_two_nodes_have_to_be_connected_and_once_more_those_of_one_local_rank() -> None:
    made = world(2)
    made.processes["d-0", 8] = Process(1, "d-0", "d-0")
    for connections in (2, 3):
        made.connected(
            "d-0", {"7": {ADDRESSES["d-1"]: 1}, "8": {ADDRESSES["d-1"]: connections - 1}}, listening=[], now=10.0
        )
        made.connected("d-1", {"7": {ADDRESSES["d-0"]: connections}}, listening=[], now=10.0)
        assert made.check_formed(made.nodes(), now=10.0) == (connections == 3)


def test_with_fewer_connections_than_there_once_were_workers_are_still_connecting() -> None:
    made = world(2)
    for connections, met in ((2, True), (4, True), (2, False), (3, False), (4, True)):
        for node, other in (("d-0", "d-1"), ("d-1", "d-0")):
            see(made, node, other, now=10.0, connections=connections)
        assert made.check_formed(made.nodes(), now=10.0) is met


def test_connections_of_nccl_come_and_go() -> None:
    made = world(2)
    for connections in (4, 11, 4, 9):
        for node, other in (("d-0", "d-1"), ("d-1", "d-0")):
            see(made, node, other, now=10.0, connections=connections)
        assert made.check_formed(made.nodes(), now=10.0)


@pytest.mark.parametrize("killed", [False, True])
def test_one_that_is_left_alone_has_met_the_other_until_it_was_lost(killed: bool) -> None:
    made = world(2)
    see_all(made, now=10.0)
    assert made.check_formed(made.nodes(), now=10.0)
    # One agent is frozen and reports nothing; or a worker's connections have closed, and its end was not reported yet.
    see(made, "d-0", *([] if killed else ["d-1"]), now=17.0)
    assert not made.check_formed(made.nodes(), now=17.0)
    made.forget("d-1")
    assert made.disturbed(now=18.0), "all had met"
    see(made, "d-0", now=18.0 + ALONE_SECONDS)
    assert made.check_formed({"d-0"}, now=18.0 + ALONE_SECONDS)


def test_connections_within_a_node_do_not_count() -> None:
    made = world(2)
    see(made, "d-0", "d-0", "d-1", now=10.0)
    see(made, "d-1", "d-0", "d-1", now=10.0)
    assert made.check_formed(made.nodes(), now=10.0)


def test_a_connection_to_a_node_that_is_lost_has_still_to_go() -> None:
    made = world()
    see_all(made, now=10.0)
    assert made.check_formed(made.nodes(), now=10.0)
    made.forget("d-2")
    assert made.disturbed(now=11.0)
    assert not made.disturbed(now=11.1), "it had not formed again"
    see(made, "d-0", "d-1", "d-2", now=20.0)
    see(made, "d-1", "d-0", now=20.0)
    assert not made.check_formed(made.nodes(), now=20.0)
    see(made, "d-0", "d-1", now=20.5)
    assert made.check_formed(made.nodes(), now=20.5)
    assert [worker.got_over for worker in made.processes.values()] == [False, False, True]


@pytest.mark.parametrize(("nodes", "wait"), [(3, FRESH_SECONDS), (1, ALONE_SECONDS)])
def test_what_was_seen_before_a_change_or_long_ago_proves_nothing(nodes: int, wait: float) -> None:
    made = world(nodes)
    see_all(made, now=wait - 0.1)
    assert not made.check_formed(made.nodes(), now=wait)
    see_all(made, now=wait)
    assert made.check_formed(made.nodes(), now=wait + FRESH_SECONDS)
    assert not made.check_formed(made.nodes(), now=wait + FRESH_SECONDS + 0.1)


def test_one_that_is_left_alone_while_workers_were_connecting_may_wait_for_a_dead_one() -> None:
    made = world(2)
    see_all(made, now=10.0)
    assert made.check_formed(made.nodes(), now=10.0)
    assert made.disturbed(now=20.0), "a node is listed"
    made.forget("d-1")
    assert not made.disturbed(now=21.0), "and one is lost before all have met"
    see(made, "d-0", now=40.0)
    assert not made.check_formed({"d-0"}, now=40.0)
    made.begin(now=50.0)
    made.processes["d-0", 9] = Process(0, "d-0", "d-0")
    made.connected("d-0", {"9": {}}, listening=[], now=60.0)
    assert made.check_formed({"d-0"}, now=60.0)


def test_what_was_trained_is_forgotten_when_those_who_have_met_have_all_ended() -> None:
    made = world(2)
    assert not made.has_forgotten(), "no workers have met yet: there is nothing to forget"
    see_all(made, now=10.0)
    assert made.check_formed(made.nodes(), now=10.0)
    made.processes["d-2", 7] = Process(2, "d-2", "d-2")
    made.forget("d-1")
    assert not made.has_forgotten(), "one is left that knows it"
    end(made, "d-0", 134, at=11.0)
    assert made.has_forgotten()
    made.forget("d-2")
    assert not made.has_forgotten(), "no worker is left that could wait"
    made.begin(now=20.0)
    made.processes["d-0", 9] = Process(0, "d-0", "d-0")
    assert not made.has_forgotten()


def test_workers_connect_when_each_of_them_has_been_seen_with_a_connection_since_the_change() -> None:
    made = world(3)
    see_all(made, now=FRESH_SECONDS - 0.1)
    assert not made.all_connect(now=FRESH_SECONDS), "connections from before, which are not broken yet"
    see(made, "d-0", "d-1", now=10.0, connections=1)
    see(made, "d-1", "d-0", now=10.0, connections=1)
    see(made, "d-2", now=10.0)
    assert not made.all_connect(now=10.0), "one may be in a step, or importing its framework"
    see(made, "d-2", "d-0", now=10.0, connections=1)
    assert made.all_connect(now=10.0)
    assert not made.check_formed(made.nodes(), now=10.0), "but they have not all met"
    assert not made.all_connect(now=10.0 + FRESH_SECONDS + 0.1), "its state is not known"


def test_one_that_is_alone_has_nobody_to_connect_to() -> None:
    made = world(1)
    see(made, "d-0", now=10.0)
    assert not made.all_connect(now=10.0)


def test_without_workers_there_is_no_world() -> None:
    made = world(1)
    end(made, "d-0", 1, at=5.0)
    see_all(made, now=20.0)
    assert not made.check_formed(made.nodes(), now=20.0)


def test_a_worker_that_was_never_reported_is_passed_over() -> None:
    made = world(1)
    made.connected("d-0", {"8": {}}, listening=[], now=9.0)
    made.connected("d-3", {"7": {}}, listening=[], now=9.0)
    assert not made.check_formed(made.nodes(), now=9.0)


def test_workers_that_continue_for_long_after_one_has_ended_well_wait_for_it() -> None:
    made = world(2)
    assert not made.waits_for_one_that_ended(now=1000.0)
    end(made, "d-1", 0, at=100.0)
    assert made.any_succeeded()
    assert not made.waits_for_one_that_ended(now=100.0 + PARTING_SECONDS)
    assert made.waits_for_one_that_ended(now=100.1 + PARTING_SECONDS)
    end(made, "d-0", 0, at=115.0)
    assert not made.waits_for_one_that_ended(now=200.0)


def test_a_node_whose_worker_has_ended_well_lacks_none_while_others_are_still_ending() -> None:
    made = world(3)
    end(made, "d-0", 0, at=100.0)
    end(made, "d-1", 1, at=100.0)
    assert made.nodes() == {"d-2"}
    assert made.nodes_served() == {"d-0", "d-2"}
    end(made, "d-2", 0, at=100.0, terminated=True)
    assert made.nodes_served() == {"d-0"}
    made.begin(now=101.0)
    assert made.nodes_served() == set()


def test_one_that_ended_badly_is_not_waited_for() -> None:
    made = world(2)
    end(made, "d-1", 1, at=100.0)
    assert not made.any_succeeded()
    assert not made.waits_for_one_that_ended(now=1000.0)
