"""When a run is stuck: what two samples of a node say, and when the supervisor believes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvdcloud.node.monitor.stillness import NodeSample, ProcessSample, Signs, compare
from hvdcloud.node.run.rank import stall_check_seconds
from hvdcloud.node.run.stuck import ANSWER_SECONDS, BUSY_FACTOR, ROUNDS, StallReader, StuckWatch
from hvdcloud.runs.stacks import Frame, ProcessStacks, RankStacks, Thread

STEP = (Frame(name="step", file="/workspace/train.py", line=41),)
LOAD = (Frame(name="load", file="/workspace/train.py", line=30),)
SECONDS = 10.0


def node(
    *, place: Any = STEP, shell: bool = False, pids: Any = (), checkpoints: Any = (0, 0), **more: Any
) -> NodeSample:
    """A node whose rank 0 is process 1, and beside it more processes that wait; `shell`: which a shell has started."""
    processes = {1: ProcessSample(place, **more)} | ({9: ProcessSample()} if shell else {})
    return NodeSample(0.0, {0: processes | {pid: ProcessSample() for pid in pids}}, checkpoints=checkpoints)


STILL = Signs()
BUSY = Signs(busy=(0,))
BUSY_MAIN = Signs(busy=(0,), busy_main=(0,))

# What a rank does → two samples, SECONDS apart, and what they say.
CASES: Mapping[str, tuple[NodeSample, NodeSample, Signs | str]] = {
    "sleeps, or waits for a lock": (node(), node(), STILL),
    "looks every 5 s whether its workers live": (node(), node(main_seconds=0.01, seconds=0.01), STILL),
    "waits in a collective of Gloo": (node(), node(main_seconds=0.09, seconds=1.4), STILL),
    "waits in a collective of Open MPI": (node(), node(seconds=9.9), BUSY),
    "spins in native code": (node(), node(main_seconds=9.9, seconds=9.9), BUSY_MAIN),
    "is stopped, and cannot be looked at": (node(place=None), node(place=None), STILL),
    "was started by a shell, and computes": (
        node(shell=True),
        node(shell=True, main_seconds=0.2, seconds=0.2),
        BUSY_MAIN,
    ),
    "trains": (node(), node(place=LOAD), "rank 0 is at another place"),
    "compiles beside it": (node(pids=(7,)), node(pids=(8,)), "rank 0 starts or ends processes"),
    "reads files": (node(), node(moved_bytes=1 << 20), "rank 0 reads or writes files"),
    "runs, and no stack of it is known": (
        node(place=None),
        node(place=None, main_seconds=0.2),
        Signs(("rank 0 runs, and its stack cannot be taken",), (0,), (0,)),
    ),
    "writes checkpoints": (node(), node(checkpoints=(0, 1)), "checkpoints are written"),
    "ends": (node(), NodeSample(0.0, {}), "ranks begin or end"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_rank_does_is_told_from_waiting(case: str) -> None:
    before, after, expected = CASES[case]
    found = compare(before._replace(at=100.0), after._replace(at=100.0 + SECONDS))
    assert found == (Signs((expected,)) if isinstance(expected, str) else expected)


# --- the clock ----------------------------------------------------------------------------------------------------

LIMIT = 100.0
NOTHING = {"compared": True, "signs": [], "busy": [], "busy_main": [], "written": None}


class Run:
    """A run of two nodes whose supervisor turns once a second."""

    def __init__(self) -> None:
        self.watch = StuckWatch(LIMIT, now=0.0)
        self.nodes = {"n0", "n1"}
        self.looks = 0
        self.stacks_at: float | None = None
        self.answers: dict[str, Any] = {"n0": NOTHING, "n1": NOTHING}

    def until(self, end: float, *, start: float = 0.0) -> Run:
        now = start
        while now < end and self.stacks_at is None:
            asked = self.watch.question(self.nodes, now=now)
            if asked and asked["type"] == "stacks":
                self.stacks_at = now
            elif asked:
                self.looks += 1
                for name, answer in self.answers.items():
                    first = {"compared": answer.get("compared") and not asked["fresh"]}
                    self.watch.looked(name, {**answer, **first, "of": asked["of"]}, now=now)
            now += 1.0
        return self


def test_a_run_in_which_nothing_moves_is_stuck_at_the_limit_and_not_before() -> None:
    run = Run().until(1000.0)
    assert run.stacks_at == LIMIT
    assert run.looks >= ROUNDS + 1
    assert run.watch.verdict(now=LIMIT) is None
    for rank, name in enumerate(["n0", "n1"]):
        run.watch.took(name, {"ranks": [RankStacks(rank=rank).to_json()]})
    stuck, stacks = run.watch.verdict(now=LIMIT + 1) or (None, [])
    assert stuck is not None
    assert [each.rank for each in stacks] == [0, 1]
    assert stuck.seconds == LIMIT + 1


def test_output_starts_the_clock_again() -> None:
    run = Run()
    run.until(90.0)
    run.watch.output(b"[1] epoch 2\n", now=90.0)
    assert run.until(1000.0, start=90.0).stacks_at == 90.0 + LIMIT


def test_output_while_the_stacks_are_taken_saves_the_run() -> None:
    run = Run().until(1000.0)
    run.watch.output(b"[1] epoch 2\n", now=LIMIT + 1)
    run.watch.took("n0", {"ranks": []})
    run.watch.took("n1", {"ranks": []})
    assert run.watch.verdict(now=LIMIT + 2) is None


@pytest.mark.parametrize("name", ["n0", "n1"])
def test_one_node_where_something_moves_keeps_the_run(name: str) -> None:
    run = Run()
    run.answers[name] = {**NOTHING, "signs": ["rank 1 computes"]}
    assert run.until(20 * LIMIT).stacks_at is None


def test_a_checkpoint_keeps_the_run() -> None:
    run = Run()
    run.answers["n1"] = {**NOTHING, "written": 0.5}
    assert run.until(20 * LIMIT).stacks_at is None


def test_a_checkpoint_from_before_does_not() -> None:
    run = Run()
    run.answers["n1"] = {**NOTHING, "written": 1000.0}
    assert run.until(1000.0).stacks_at == LIMIT


@pytest.mark.parametrize("answer", [{}, {**NOTHING, "compared": False}])
def test_a_node_that_cannot_look_keeps_the_run(answer: dict[str, Any]) -> None:
    run = Run()
    run.answers["n1"] = answer
    assert run.until(20 * LIMIT).stacks_at is None


def test_a_node_that_does_not_answer_keeps_the_run_and_is_asked_again() -> None:
    run = Run()
    del run.answers["n1"]
    assert run.until(LIMIT + 5 * ANSWER_SECONDS).stacks_at is None
    assert run.looks >= 4


def test_ranks_that_start_or_find_each_other_are_not_watched() -> None:
    run = Run()
    run.nodes = set()
    assert run.until(1000.0).looks == 0
    run.nodes = {"n0", "n1"}
    assert run.until(5000.0, start=1000.0).stacks_at == 999.0 + LIMIT


def test_a_rank_that_computes_at_one_place_gets_longer() -> None:
    run = Run()
    run.answers["n1"] = {**NOTHING, "busy": [3]}
    assert run.until(5000.0).stacks_at == BUSY_FACTOR * LIMIT


@pytest.mark.parametrize(
    ("busy", "busy_main", "limits"), [([0, 1, 3], [0, 1], 1), ([3], [3], BUSY_FACTOR), ([0, "3", None, {}], "3", 1)]
)
def test_what_ranks_compute_while_they_wait_for_another_is_no_work(busy: Any, busy_main: Any, limits: float) -> None:
    run = Run()
    run.watch.output(COMPLAINT, now=0.0)
    run.answers["n1"] = {**NOTHING, "busy": busy, "busy_main": busy_main}
    assert run.until(5000.0).stacks_at == limits * LIMIT


def test_a_complaint_from_before_something_moved_says_nothing() -> None:
    run = Run()
    run.watch.output(COMPLAINT, now=0.0)
    run.watch.output(b"[1] epoch 2\n", now=1.0)
    run.answers["n1"] = {**NOTHING, "busy": [0]}
    assert run.until(5000.0, start=1.0).stacks_at == 1.0 + BUSY_FACTOR * LIMIT


def test_an_answer_from_before_something_moved_says_nothing() -> None:
    watch = StuckWatch(LIMIT, now=0.0)
    asked = watch.question({"n0"}, now=60.0) or {}
    watch.worked(now=61.0)
    for at in range(62, 500):
        again = watch.question({"n0"}, now=float(at))
        assert again is None or again["type"] == "look"
        watch.looked("n0", {**NOTHING, "of": asked["of"]}, now=float(at))


# --- Horovod's complaints -------------------------------------------------------------------------------------------

COMPLAINT = (
    b"[0] [2026-11-24 08:00:00.123456: W /tmp/horovod/common/stall_inspector.cc:107] One or more tensors were "
    b"submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for "
    b"more than 60 seconds. This may indicate that different ranks are trying to submit different tensors or that only "
    b"subset of ranks is submitting tensors, which will cause deadlock. \n"
    b"[0] Missing ranks:\n"
    b"[0] 3: [allreduce.grad.weight, allreduce.grad.bias]\n"
)


@pytest.mark.parametrize(
    "pieces", [[COMPLAINT], COMPLAINT.splitlines(keepends=True), [COMPLAINT[:13], COMPLAINT[13:60], COMPLAINT[60:]]]
)
def test_what_horovod_says_of_ranks_that_wait_is_no_work_and_names_the_tensors(pieces: list[bytes]) -> None:
    reader = StallReader()
    assert [reader.feed(piece) for piece in pieces] == [False] * len(pieces)
    assert reader.missing == {3: ("allreduce.grad.weight", "allreduce.grad.bias")}


def test_of_many_tensors_horovod_names_some_and_marks_ranks_that_it_ends() -> None:
    reader = StallReader()
    assert not reader.feed(COMPLAINT.replace(b"3: [", b"3!: [").replace(b".bias]", b".bias ...]"))
    assert reader.missing == {3: ("allreduce.grad.weight", "allreduce.grad.bias")}


@pytest.mark.parametrize(
    "text",
    [
        b"[1] epoch 1\n",
        b"[0] 3: [0.25, 0.5]\n",
        b"[0] \r 10 %",
        b"[0] .",
        b"launcher speaks\n",
        COMPLAINT + b"[1] epoch 1\n",
        COMPLAINT + b"[0] epoch 1\n",
    ],
)
def test_what_ranks_print_is_work(text: bytes) -> None:
    assert StallReader().feed(text)


def test_empty_lines_are_no_work() -> None:
    assert not StallReader().feed(b"[0] \n\n")


@pytest.mark.parametrize(("limit", "seconds"), [(2.0, 1.0), (30.0, 5.0), (1800.0, 60.0)])
def test_horovod_complains_before_the_run_is_taken_to_be_stuck(limit: float, seconds: float) -> None:
    assert stall_check_seconds(limit) == seconds
    # Its warning comes at the fourth of its looks, at the latest.
    assert limit < 6 or 4 * seconds < limit


def test_the_verdict_says_for_which_tensors_the_others_wait() -> None:
    run = Run()
    run.watch.output(COMPLAINT, now=1.0)
    run.until(1000.0)
    main = Thread(main=True, frames=STEP)
    load = Thread(main=True, frames=LOAD)
    for name, rank, at in (("n0", 0, main), ("n1", 3, load)):
        stacks = RankStacks(rank=rank, processes=[ProcessStacks(pid=1, threads=[at])])
        run.watch.took(name, {"ranks": [stacks.to_json()]})
    stuck, _ = run.watch.verdict(now=LIMIT) or (None, [])
    assert stuck is not None
    assert stuck.text == (
        "stuck: nothing moved for 100 s; rank 0 is in step (train.py:41), waiting for allreduce.grad.bias, "
        "allreduce.grad.weight; rank 3 is in load (train.py:30)"
    )
