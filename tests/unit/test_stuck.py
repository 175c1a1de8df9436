"""When a run is stuck: what two samples of a node say, and when the supervisor believes it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from hvdcloud.node.run.stuck import BUSY_FACTOR, ROUNDS, StallReader, StuckWatch
from hvdcloud.runs.stacks import Frame, ProcessStacks, RankStacks, Stuck, Thread

STEP = (Frame(name="step", file="/workspace/train.py", line=41),)
LOAD = (Frame(name="load", file="/workspace/train.py", line=30),)
LIMIT = 100.0


def stacks(rank: int, place: tuple[Frame, ...]) -> Any:
    """Of a rank that a shell has started, and whose Python is at a place; empty: not known."""
    threads = [Thread(main=True, frames=place), Thread(frames=LOAD)]
    shell = ProcessStacks(pid=1, problem="it runs no Python")
    found = RankStacks(rank=rank, processes=[shell, ProcessStacks(pid=2, threads=threads)])
    return json.loads(json.dumps(found.to_json()))


class Node:
    """A node with one rank: what its processes use of a core, and where it is."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.main = self.every = 0.0
        """Of a core: by main threads, by all threads."""
        self.moves = 0.0
        """Bytes a second."""
        self.places = [STEP]
        """In turn."""
        self.written: float | None = None
        self.answers = True

    def answer(self, look: int, *, now: float) -> dict[str, Any]:
        used = [self.rank, [self.main * now, self.every * now, self.moves * now]]
        place = self.places[look % len(self.places)]
        return {"ranks": [stacks(self.rank, place)], "used": [used], "written": self.written, "at": now}


class Run:
    """A run of two nodes, with ranks 0 and 3, whose supervisor turns once a second."""

    def __init__(self) -> None:
        self.nodes = {"n0": Node(0), "n1": Node(3)}
        self.there = {"n0", "n1"}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.watch = StuckWatch(LIMIT, lambda node, message: self.asked.append((node, message)), now=0.0)
        self.looks = 0
        self.stuck: Stuck | None = None
        self.stuck_at: float | None = None
        self.native = False
        """Whether the last look was with native code."""

    def until(self, end: float, *, start: float = 0.0) -> Run:
        now = start
        while now < end and self.stuck is None:
            if found := self.watch.turn(self.there, now=now):
                (self.stuck, _), self.stuck_at = found, now
            self.looks += bool(self.asked)
            while self.asked:
                node, message = self.asked.pop()
                self.native = message["native"]
                if self.nodes[node].answers:
                    self.watch.heard(node, self.nodes[node].answer(self.looks, now=now), now=now)
            now += 1.0
        return self


def test_a_run_in_which_nothing_moves_is_stuck_at_the_limit_and_not_before() -> None:
    run = Run().until(1000.0)
    assert run.stuck is not None
    assert run.stuck_at == LIMIT + 1
    assert run.looks >= ROUNDS + 1
    assert run.native
    assert run.stuck.seconds == LIMIT + 1
    assert [list(group.ranks) for group in run.stuck.groups] == [[0, 3]]


def test_output_starts_the_clock_again() -> None:
    run = Run()
    run.until(90.0)
    run.watch.output(b"[1] epoch 2\n", now=90.0)
    assert run.until(1000.0, start=90.0).stuck_at == 90.0 + LIMIT + 1


# What a node does, which keeps the run.
WORK: Mapping[str, dict[str, Any]] = {
    "trains": {"places": [STEP, LOAD]},
    "reads files": {"moves": 1e6},
    "writes checkpoints": {"written": 0.5},
    "runs, and no stack of it is known": {"places": [()], "main": 0.02},
    "does not answer": {"answers": False},
}


@pytest.mark.parametrize("name", ["n0", "n1"])
@pytest.mark.parametrize("work", WORK)
def test_one_node_where_something_moves_keeps_the_run(name: str, work: str) -> None:
    run = Run()
    vars(run.nodes[name]).update(WORK[work])
    assert run.until(20 * LIMIT).stuck is None
    assert run.looks >= 4


def test_ranks_that_start_or_find_each_other_are_not_watched() -> None:
    run = Run()
    run.there = set()
    assert run.until(1000.0).looks == 0
    run.there = {"n0", "n1"}
    assert run.until(5000.0, start=1000.0).stuck_at == 1000.0 + LIMIT + 1


@pytest.mark.parametrize("busy", [{"main": 0.02, "every": 0.02}, {"every": 0.99}])
def test_a_rank_that_computes_at_one_place_gets_longer(busy: dict[str, float]) -> None:
    run = Run()
    vars(run.nodes["n1"]).update(busy)
    assert run.until(5000.0).stuck_at == BUSY_FACTOR * LIMIT + 1


@pytest.mark.parametrize(
    ("waits", "missing", "limits"),
    [({"main": 0.99, "every": 2.0}, {"every": 2.0}, 1), ({"every": 2.0}, {"main": 0.99, "every": 2.0}, BUSY_FACTOR)],
)
def test_what_ranks_compute_while_they_wait_for_another_is_no_work(waits: Any, missing: Any, limits: float) -> None:
    run = Run().until(1.0)
    run.watch.output(COMPLAINT, now=1.0)
    vars(run.nodes["n0"]).update(waits)
    vars(run.nodes["n1"]).update(missing)
    assert run.until(5000.0, start=1.0).stuck_at == limits * LIMIT + 1


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


def test_the_verdict_says_for_which_tensors_the_others_wait() -> None:
    run = Run().until(1.0)
    run.watch.output(COMPLAINT, now=1.0)
    run.nodes["n1"].places = [LOAD]
    stuck = run.until(1000.0, start=1.0).stuck
    assert stuck is not None
    assert stuck.text == (
        "stuck: nothing moved for 101 s; rank 0 is in step (train.py:41), waiting for allreduce.grad.bias, "
        "allreduce.grad.weight; rank 3 is in load (train.py:30)"
    )
