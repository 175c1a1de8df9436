"""How a run ended, judged from what was seen of it."""

from __future__ import annotations

from typing import Any

import pytest

from hvdcloud.node.run.outcome import (
    Ended,
    Loss,
    Outcome,
    Worker,
    judge,
    judge_elastic,
    may_be_a_consequence,
)
from hvdcloud.runs.reports import RankRecord


def ended(rank: int, exit_code: int, *, at: float = 10.0, signal: int | None = None, terminated: bool = False) -> Ended:
    record = RankRecord(rank=rank, node=f"n{rank}", exit_code=exit_code, signal=signal, terminated=terminated, ended=at)
    return Ended(record, at)


def evidence(**seen: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {
        "np": 2,
        "ended": [],
        "lost": [],
        "stopped": False,
        "trouble": "",
        "trouble_is_loss": False,
        "launcher": None,
    }
    return {**nothing, **seen}


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ({"ended": [ended(0, 0), ended(1, 0)], "launcher": 0}, Outcome("succeeded", 0, "")),
        # What the ranks say counts, not what became of the launcher's own connections.
        ({"ended": [ended(0, 0), ended(1, 0)], "launcher": 1}, Outcome("succeeded", 0, "")),
        ({"ended": [ended(0, 0), ended(1, 0)], "stopped": True}, Outcome("succeeded", 0, "")),
        ({"ended": [ended(0, 2)], "launcher": 1}, Outcome("failed", 2, "rank 0 on n0 exited with 2")),
        (
            {"ended": [ended(1, 139, signal=11), ended(0, 1)], "launcher": 1},
            Outcome("failed", 139, "rank 1 on n1 was killed by signal 11 (SIGSEGV)"),
        ),
        (
            # Whom the launcher ended is never the cause, even if that is heard of first.
            {"ended": [ended(0, 143, signal=15, terminated=True), ended(1, 137, signal=9, at=11.0)], "launcher": 1},
            Outcome("failed", 137, "rank 1 on n1 was killed by signal 9 (SIGKILL)"),
        ),
        (
            {"ended": [ended(0, 1, terminated=True), ended(1, 1, at=11.0)], "launcher": 1},
            Outcome("failed", 1, "rank 1 on n1 exited with 1"),
        ),
        (
            {"ended": [ended(0, 143, signal=15, terminated=True), ended(1, 3, at=20.0)], "launcher": 1},
            Outcome("failed", 3, "rank 1 on n1 exited with 3"),
        ),
        # Reports of slow nodes arrive late: what counts is when a rank ended.
        (
            {"ended": [ended(0, 7, at=15.0), ended(1, 3, at=10.0)], "launcher": 1},
            Outcome("failed", 3, "rank 1 on n1 exited with 3"),
        ),
        ({"stopped": True, "ended": [ended(0, 0)]}, Outcome("stopped", None, "stopped on request")),
        ({"ended": [ended(0, 1)], "stopped": True}, Outcome("failed", 1, "rank 0 on n0 exited with 1")),
        ({"trouble": "disk full"}, Outcome("failed", None, "disk full")),
        ({"trouble": "agent", "trouble_is_loss": True}, Outcome("lost", None, "agent")),
        ({"launcher": -9}, Outcome("failed", 137, "horovodrun was killed by signal 9 (SIGKILL)")),
        (
            # Horovod's watchers end the ranks when the launcher is killed.
            {"launcher": -9, "ended": [ended(0, 143, signal=15)]},
            Outcome("failed", 137, "horovodrun was killed by signal 9 (SIGKILL)"),
        ),
        # Ranks that were asked to end may exit with 0, and have not finished.
        (
            {"launcher": -15, "ended": [ended(0, 0), ended(1, 0, terminated=True)]},
            Outcome("failed", 143, "horovodrun was killed by signal 15 (SIGTERM)"),
        ),
        (
            {"launcher": 0, "ended": [ended(0, 0, terminated=True), ended(1, 0, terminated=True)]},
            Outcome("failed", None, "horovodrun ended its ranks although none had failed"),
        ),
        ({"launcher": -15, "ended": [ended(0, 0), ended(1, 0)]}, Outcome("succeeded", 0, "")),
        (
            {"launcher": 1},
            Outcome("failed", 1, "horovodrun exited with 1 before its ranks had; the last lines of the log say why"),
        ),
        (
            {"launcher": 0, "ended": [ended(0, 0)]},
            Outcome("failed", None, "horovodrun ended, but only 1 of 2 ranks did"),
        ),
    ],
)
def test_the_first_cause_counts(seen: dict[str, Any], outcome: Outcome) -> None:
    assert judge(**evidence(**seen)) == outcome


def test_a_rank_that_fails_because_its_peers_node_is_gone_is_not_the_cause() -> None:
    loss = Loss("n1", "the connection broke", at=11.0)

    assert judge(**evidence(ended=[ended(0, 1, at=10.9)], lost=[loss])).result == "lost"
    assert judge(**evidence(ended=[ended(0, 1, at=2.0)], lost=[loss])).result == "failed"


def test_a_code_of_ones_own_beats_the_python_errors_of_the_peers() -> None:
    assert judge(**evidence(ended=[ended(0, 1, at=10.0), ended(1, 3, at=10.5)])).exit_code == 3
    assert judge(**evidence(ended=[ended(0, 1, at=10.0), ended(1, 3, at=19.0)])).exit_code == 1
    # A signal that follows is what the launcher does to the others.
    assert judge(**evidence(ended=[ended(0, 1, at=10.0), ended(1, 143, at=10.1, signal=15)])).exit_code == 1


def test_the_question_stays_open_only_for_a_moment_and_only_for_python_errors() -> None:
    assert may_be_a_consequence([ended(0, 1, at=10.0)], np=2, now=10.5)
    assert not may_be_a_consequence([ended(0, 1, at=10.0)], np=2, now=15.0)
    assert not may_be_a_consequence([ended(0, 3, at=10.0)], np=2, now=10.1)
    assert not may_be_a_consequence([ended(0, 1), ended(1, 1)], np=2, now=10.1)
    assert not may_be_a_consequence([ended(0, 0)], np=2, now=10.1)


def test_what_an_agent_ended_on_its_own_account_is_not_the_launchers_fault() -> None:
    trouble = "node n0 ended its part of the run: no heartbeat from the head for 26 s"

    outcome = judge(**evidence(launcher=-15, trouble=trouble, trouble_is_loss=True))

    assert outcome == Outcome("lost", None, trouble)


def worker(
    rank: int, exit_code: int | None = None, *, lost: bool = False, got_over: bool = False, **how: Any
) -> Worker:
    end = None if exit_code is None else ended(rank, exit_code, **how)
    return Worker(rank, f"n{rank}", ended=end, lost=lost, got_over=got_over)


def elastic_evidence(*workers: Worker, **seen: Any) -> dict[str, Any]:
    nothing: dict[str, Any] = {"least": 1, "lost": [], "stopped": False, "trouble": "", "launcher": None}
    return {"workers": workers, **nothing, **seen}


REMOVED = worker(2, 1, got_over=True, at=5.0)
"""Of a node that was dismissed: Horovod ends it by an exception."""
LOST_LONG_AGO = worker(2, lost=True, got_over=True)
KILLED_LONG_AGO = worker(2, 137, got_over=True, signal=9, at=5.0)
EARLY = "the worker on n0 that began as rank 0 exited with 0 while 1 more were training, which ends an elastic job"


@pytest.mark.parametrize(
    ("workers", "seen", "outcome"),
    [
        ([worker(0, 0), worker(1, 0)], {"launcher": 0}, Outcome("succeeded", 0, "")),
        # A worker that left before the others were done has no part in it.
        ([worker(0, 0), REMOVED, LOST_LONG_AGO, KILLED_LONG_AGO], {"launcher": 0}, Outcome("succeeded", 0, "")),
        ([worker(0, 0), worker(1, 0)], {"launcher": 1, "stopped": True}, Outcome("succeeded", 0, "")),
        ([worker(0, 0), worker(1, 7, at=12.0)], {"launcher": 0}, Outcome("failed", 7, EARLY)),
        ([worker(0, 0), worker(1)], {"launcher": 0}, Outcome("failed", None, EARLY)),
        ([worker(0, 0), worker(1)], {"stopped": True}, Outcome("stopped", None, "stopped on request")),
        ([worker(0), worker(1)], {"stopped": True}, Outcome("stopped", None, "stopped on request")),
        ([worker(0), worker(1)], {"trouble": "disk full", "launcher": 1}, Outcome("lost", None, "disk full")),
        ([worker(0, 3), worker(1, 1)], {"launcher": 1}, Outcome("failed", 3, "rank 0 on n0 exited with 3")),
        (
            [worker(0, 1), worker(1, 139, signal=11, at=9.5)],
            {"launcher": 1},
            Outcome("failed", 139, "rank 1 on n1 was killed by signal 11 (SIGSEGV)"),
        ),
        # Whom Horovod ended itself has not failed.
        (
            [worker(0, 143, signal=15, terminated=True), worker(1, 3, at=11.0)],
            {"launcher": 1},
            Outcome("failed", 3, "rank 1 on n1 exited with 3"),
        ),
        # What the others got over is not what ended the run.
        ([KILLED_LONG_AGO, worker(0, 3)], {"launcher": 1}, Outcome("failed", 3, "rank 0 on n0 exited with 3")),
        ([REMOVED, worker(0, 3)], {"launcher": 1}, Outcome("failed", 3, "rank 0 on n0 exited with 3")),
        (
            [worker(0, lost=True), worker(1, lost=True)],
            {"lost": [Loss("n1", "gone", 1.0), Loss("n0", "gone", 2.0)], "least": 2, "launcher": 1},
            Outcome("lost", None, "nothing was heard from n0, n1, and fewer than 2 nodes were left"),
        ),
        ([worker(0)], {"launcher": -9}, Outcome("failed", 137, "horovodrun was killed by signal 9 (SIGKILL)")),
        # Its workers are asked to end, and may exit with 0.
        (
            [worker(0, 0, terminated=True), worker(1, 0, terminated=True)],
            {"launcher": -9},
            Outcome("failed", 137, "horovodrun was killed by signal 9 (SIGKILL)"),
        ),
        ([worker(0, 0), worker(1, 0, terminated=True)], {"launcher": 0}, Outcome("succeeded", 0, "")),
        (
            [],
            {"launcher": 1},
            Outcome(
                "failed", 1, "horovodrun exited with 1, but no worker ended its training; the log's last lines say why"
            ),
        ),
    ],
)  # fmt: skip
def test_of_an_elastic_run_counts_what_happened_to_those_that_trained_last(
    workers: list[Worker], seen: dict[str, Any], outcome: Outcome
) -> None:
    assert judge_elastic(**elastic_evidence(*workers, **seen)) == outcome
