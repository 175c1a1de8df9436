"""The workers of an elastic run, and what is known of them."""

from __future__ import annotations

from hvdcloud.node.elastic.workers import Workers
from hvdcloud.node.run.outcome import Ended, Worker
from hvdcloud.runs.reports import RankRecord


def world(nodes: int = 3) -> Workers:
    """A worker on each node."""
    return Workers({(f"d-{index}", 7): Worker(index, f"d-{index}", f"d-{index}") for index in range(nodes)})


def end(made: Workers, node: str, exit_code: int, *, terminated: bool = False) -> None:
    record = RankRecord(rank=0, exit_code=exit_code, terminated=terminated)
    made.processes[node, 7].ended = Ended(record, 10.0)


def test_the_workers_of_a_lost_node_run_no_more() -> None:
    made = world()
    made.forget("d-1")
    assert made.nodes() == made.nodes_served() == {"d-0", "d-2"}


def test_a_node_whose_worker_has_done_its_work_is_served_and_one_whose_worker_failed_is_not() -> None:
    made = world()
    end(made, "d-1", 0)
    end(made, "d-2", 1)
    assert made.nodes() == {"d-0"}
    assert made.nodes_served() == {"d-0", "d-1"}
    assert made.any_completed()


def test_a_worker_that_was_told_to_end_has_succeeded_but_not_completed_its_work() -> None:
    made = world()
    end(made, "d-1", 0, terminated=True)
    assert (made.any_succeeded(), made.any_completed()) == (True, False)


def test_a_failure_that_the_others_got_over_is_none_any_more() -> None:
    made = world()
    end(made, "d-1", 1)
    assert made.processes["d-1", 7].failed
    made.got_over()
    assert not made.processes["d-1", 7].failed
    end(made, "d-2", 1)
    assert made.processes["d-2", 7].failed
