"""When a run is stuck: what two samples of a node say, and when the supervisor believes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hvdcloud.node.monitor.sample import parse_gpus
from hvdcloud.node.monitor.stacks import gpu_sample
from hvdcloud.node.monitor.stillness import GpuSample, NodeSample, ProcessSample, Signs, ThreadSample, compare
from hvdcloud.node.run.rank import stall_check_seconds
from hvdcloud.node.run.stuck import ANSWER_SECONDS, ROUNDS, SPIN_FACTOR, StallReader, StuckWatch
from hvdcloud.runs.stacks import Frame, ProcessStacks, RankStacks, Thread

STEP = (Frame(name="step", file="/workspace/train.py", line=41),)
LOAD = (Frame(name="load", file="/workspace/train.py", line=30),)
HOROVOD = "/opt/venv/lib/python3.11/site-packages/horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"
REDUCE = (
    Frame(name="synchronize", file="/opt/venv/lib/python3.11/site-packages/horovod/torch/mpi_ops.py", line=9),
    *STEP,
)
CUDA = "/usr/local/nvidia/lib64/libcuda.so.580.159.04"
SLEEP, LOCK, SOCKET, POLL = "hrtimer_nanosleep", "futex_do_wait", "sk_wait_data", "do_epoll_wait"
SECONDS = 10.0


def thread(cpu: float = 0.0, **more: Any) -> ThreadSample:
    return ThreadSample(**{"cpu": cpu, "wakes": 0, "faults": 0, "waits": LOCK, **more})


def node(*threads: ThreadSample, at: float = 0.0, main: Any = STEP, pids: Any = (), **more: Any) -> NodeSample:
    """A node whose rank 0 is process 1, with these threads, and beside it more processes that wait."""
    process = ProcessSample(dict(enumerate(threads, 1)), more.pop("moved_bytes", 0), main)
    others = {pid: ProcessSample({pid: thread()}, 0, None) for pid in pids}
    return NodeSample(at, {0: {1: process, **others}}, **more)


STILL = Signs((), spins=False)
SPINS = Signs((), spins=True)

# What a rank does → two samples, SECONDS apart, and what they say. stillness.py has the same table in words.
CASES: Mapping[str, tuple[NodeSample, NodeSample, Signs | str]] = {
    "sleeps, or waits for a lock": (node(thread()), node(thread()), STILL),
    "waits in a data loader that looks every 5 s whether its workers live": (
        node(thread(wakes=100)),
        node(thread(cpu=0.01, wakes=102, waits=POLL)),
        STILL,
    ),
    "waits in a collective of Gloo": (
        node(thread(waits=SLEEP), thread(), main=REDUCE),
        node(
            thread(cpu=0.2, wakes=9000, waits=SLEEP),
            thread(cpu=1.2, wakes=19000, waits=POLL, owner=HOROVOD),
            main=REDUCE,
        ),
        STILL,
    ),
    "waits in a collective of Open MPI": (
        node(thread(), thread()),
        node(thread(), thread(cpu=9.9, waits="", faults=400, owner=HOROVOD)),
        STILL,
    ),
    "waits in MPI's barrier itself": (
        node(thread()),
        node(thread(cpu=9.9, waits="", inside=("/usr/lib/x86_64-linux-gnu/libopen-pal.so.40.30.2",))),
        STILL,
    ),
    "waits for a GPU that waits for others": (
        node(thread(), gpus=(GpuSample(100.0, 9e9, power=0.17),)),
        node(thread(cpu=9.9, waits="", inside=(CUDA,)), gpus=(GpuSample(100.0, 9e9, power=0.17),)),
        STILL,
    ),
    "exchanges a few hundred bytes a millisecond, as idle ranks of Horovod do": (
        node(thread()),
        node(thread(), network=400_000.0),
        STILL,
    ),
    "is stopped, or in a debugger, and cannot be looked at": (
        node(thread(), main=None),
        node(thread(), main=None),
        STILL,
    ),
    "spins in native code": (node(thread()), node(thread(cpu=9.9, waits="")), SPINS),
    "spins in a thread of its own": (node(thread(), thread()), node(thread(), thread(cpu=9.9, waits="")), SPINS),
    "trains": (node(thread()), node(thread(cpu=0.3), main=LOAD), "rank 0 is at another place"),
    "loads and evaluates slowly, and is at one place mostly": (
        node(thread(waits=POLL)),
        node(thread(cpu=0.02, wakes=5, waits=POLL)),
        "rank 0 runs now and then",
    ),
    "computes in between, and is at one place whenever it is looked at": (
        node(thread(waits=SLEEP)),
        node(thread(cpu=2.0, wakes=400, waits=SLEEP)),
        Signs(("rank 0 runs now and then",), spins=True),
    ),
    "is in one long call that computes": (
        node(thread()),
        node(thread(cpu=9.9, waits="", faults=16)),
        "rank 0 computes",
    ),
    "compiles in a thread of its framework": (
        node(thread(), thread()),
        node(thread(), thread(cpu=9.0, faults=5000, owner="/opt/venv/lib/tensorflow/libtensorflow_framework.so.2")),
        "rank 0 computes",
    ),
    "compiles beside it": (node(thread(), pids=(7,)), node(thread(), pids=(8,)), "rank 0 starts or ends processes"),
    "reads files": (node(thread()), node(thread(), moved_bytes=1 << 20), "rank 0 reads or writes files"),
    "downloads": (
        node(thread(waits=SOCKET)),
        node(thread(wakes=40, waits=SOCKET)),
        "rank 0 gets something over a socket or from a disk",
    ),
    "polls a file": (node(thread(waits=SLEEP)), node(thread(wakes=1000, waits=SLEEP)), STILL),
    "runs, and no stack of it is known": (
        node(thread(), main=None),
        node(thread(wakes=1), main=None),
        "rank 0 runs, and its stack cannot be taken",
    ),
    "runs, and its stack is known once": (
        node(thread(), main=STEP),
        node(thread(wakes=1), main=None),
        "rank 0 runs, and its stack cannot be taken",
    ),
    "writes checkpoints": (node(thread()), node(thread(), checkpoints=(0, 1)), "checkpoints are written"),
    "exchanges tensors": (node(thread()), node(thread(), network=2_000_000.0), "the network is busy"),
    "uses its GPU": (
        node(thread(), gpus=(GpuSample(0.0, 9e9),)),
        node(thread(), gpus=(GpuSample(10.0, 9e9),)),
        "a GPU's load changes",
    ),
    "ends": (node(thread()), NodeSample(0.0, {}), "ranks begin or end"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_rank_does_is_told_from_waiting(case: str) -> None:
    before, after, expected = CASES[case]
    found = compare(before._replace(at=100.0), after._replace(at=100.0 + SECONDS))
    assert found == (Signs((expected,), spins=False) if isinstance(expected, str) else expected)


# What an H200 with driver 580.159.04 said to sample.QUERY while the main thread of a rank stayed at one place, in its
# driver; twice, a second apart.
GPU_CASES = {
    "waits for a rank that does not come, in NCCL": (
        "0, 100, 2019, 143771, 36, 118.98, 0, 700.00",
        "0, 100, 2019, 143771, 36, 118.94, 0, 700.00",
        (),
    ),
    "waits for a kernel that never ends": (
        "0, 100, 529, 143771, 36, 118.26, 0, 700.00",
        "0, 100, 529, 143771, 36, 118.22, 0, 700.00",
        (),
    ),
    "has a GPU, and does nothing": (
        "0, 0, 621, 143771, 36, 118.81, 0, 700.00",
        "0, 0, 621, 143771, 36, 118.80, 0, 700.00",
        (),
    ),
    "waits for one large product": (
        "0, 100, 3699, 143771, 55, 597.76, 24, 700.00",
        "0, 100, 3699, 143771, 55, 596.16, 20, 700.00",
        ("a GPU computes",),
    ),
    "waits for products that stay in the GPU's cache": (
        "0, 100, 841, 143771, 58, 669.16, 0, 700.00",
        "0, 100, 841, 143771, 58, 669.33, 0, 700.00",
        ("a GPU computes",),
    ),
    "waits for many small products": (
        "0, 90, 823, 143771, 36, 121.79, 0, 700.00",
        "0, 92, 823, 143771, 36, 121.72, 0, 700.00",
        ("a GPU computes",),
    ),
    "waits for each of its small products": (
        "0, 43, 719, 143771, 37, 125.28, 0, 700.00",
        "0, 47, 719, 143771, 37, 127.66, 0, 700.00",
        ("a GPU computes",),
    ),
    "copies within the GPU": (
        "0, 100, 2575, 143771, 42, 334.27, 100, 700.00",
        "0, 100, 2575, 143771, 42, 364.67, 100, 700.00",
        ("a GPU computes",),
    ),
    "has a GPU that says nothing of itself": (
        "0, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]",
        "0, [N/A], [N/A], [N/A], [N/A], [N/A], [N/A], [N/A]",
        (),
    ),
}


@pytest.mark.parametrize("case", GPU_CASES)
def test_a_gpu_that_computes_is_told_from_one_whose_kernel_waits(case: str) -> None:
    earlier, later, expected = GPU_CASES[case]
    before, after = (tuple(map(gpu_sample, parse_gpus(said))) for said in (earlier, later))
    spins = thread(cpu=9.9, waits="", inside=(CUDA,))
    found = compare(node(thread(), gpus=before), node(spins, at=SECONDS, gpus=after))
    assert found == Signs(expected, spins=False)


# --- the clock ----------------------------------------------------------------------------------------------------

LIMIT = 100.0
NOTHING = {"compared": True, "signs": [], "spins": False, "written": None}


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


def test_a_thread_that_spins_gets_longer() -> None:
    run = Run()
    run.answers["n1"] = {**NOTHING, "spins": True}
    assert run.until(5000.0).stacks_at == SPIN_FACTOR * LIMIT


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
