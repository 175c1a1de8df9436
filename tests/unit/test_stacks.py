"""Stacks: how ranks are grouped, what is shown of them, and that nothing a job can put into them breaks a reader."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from hvdcloud.node.monitor.stacks import bounded
from hvdcloud.runs.failure import explain, told
from hvdcloud.runs.stacks import Frame, Group, ProcessStacks, RankStacks, Stuck, Thread, grouped, ranks_text
from hvdcloud.runs.state import RunState

SITE = "/opt/venv/lib/python3.11/site-packages"
WAITS = Frame(name="pthread_cond_wait", file="/lib/x86_64-linux-gnu/libc.so.6", native=True)
REDUCE = (
    WAITS,
    Frame(name="synchronize", file=f"{SITE}/horovod/torch/mpi_ops.py", line=1273),
    Frame(name="_DistributedOptimizer.step", file=f"{SITE}/horovod/torch/optimizer.py", line=333),
    Frame(name="profile_hook_step.<locals>.wrapper", file=f"{SITE}/torch/optim/optimizer.py", line=526),
    Frame(name="train", file="/workspace/train.py", line=52),
    Frame(name="<module>", file="/workspace/train.py", line=60),
)
LOAD = (
    Frame(name="_SingleProcessDataLoaderIter._next_data", file=f"{SITE}/torch/utils/data/dataloader.py", line=788),
    Frame(name="_BaseDataLoaderIter.__next__", file=f"{SITE}/torch/utils/data/dataloader.py", line=732),
    Frame(name="train", file="/workspace/train.py", line=41),
)


def rank(number: int, frames: tuple[Frame, ...], **more: Any) -> RankStacks:
    shell = ProcessStacks(pid=10 + number, command="sh -c python train.py", problem="it runs no Python")
    threads = [Thread(name="MainThread", main=True, frames=frames), Thread(name="loader", frames=(WAITS,))]
    return RankStacks(
        rank=number, node=f"n{number}", processes=[shell, ProcessStacks(pid=20 + number, threads=threads)]
    )


def test_ranks_at_the_same_place_are_shown_once_and_those_that_differ_first() -> None:
    found = grouped([rank(0, REDUCE), rank(1, REDUCE), rank(2, REDUCE), rank(3, LOAD)])
    assert [list(group.ranks) for group in found] == [[3], [0, 1, 2]]
    assert [group.text for group in found] == [
        "rank 3 is in _BaseDataLoaderIter.__next__ (train.py:41)",
        "ranks 0, 1 and 2 are in _DistributedOptimizer.step (train.py:52)",
    ]
    assert list(found[1].lines) == [
        "train.py:52 in train",
        "torch/optim/optimizer.py:526 in profile_hook_step.<locals>.wrapper",
        "horovod/torch/optimizer.py:333 in _DistributedOptimizer.step",
        "horovod/torch/mpi_ops.py:1273 in synchronize",
        "libc.so.6 in pthread_cond_wait",
    ]


def test_native_code_makes_no_groups() -> None:
    other = replace(WAITS, name="0x7f0012345678")
    (group,) = grouped([rank(0, (other, *REDUCE[1:])), rank(1, REDUCE)])
    assert not any("0x7f" in line for line in group.lines), "an address without a name says nothing"


def test_a_rank_without_a_stack_is_named_with_the_reason() -> None:
    lost = RankStacks(rank=1, processes=[ProcessStacks(pid=1, problem="it may not be traced")])
    first, _ = grouped([lost, rank(0, REDUCE), rank(2, REDUCE)])
    assert (first.text, list(first.lines)) == ("of rank 1 no stack is known", ["it may not be traced"])
    assert grouped([RankStacks(rank=4)])[0].text == "of rank 4 no stack is known"


def test_those_wait_for_a_tensor_that_have_submitted_it() -> None:
    found = grouped([rank(0, REDUCE), rank(1, REDUCE), rank(2, LOAD)], missing={2: ["grad.weight"]})
    assert [list(group.waits_for) for group in found] == [[], ["grad.weight"]]
    # Each of two groups has what the other has not.
    crossed = grouped([rank(0, REDUCE), rank(1, LOAD)], missing={0: ["b"], 1: ["a"]})
    assert [list(group.waits_for) for group in crossed] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0 and 1"),
        ([2, 0, 1], "ranks 0, 1 and 2"),
        (range(32), "ranks 0-31"),
        ([0, 2, 3, 4, 5, 9], "ranks 0, 2-5 and 9"),
        (range(0, 100, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and others"),
    ],
)
def test_ranks_are_counted_up(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_stacks_survive_their_way() -> None:
    sent = rank(3, LOAD)
    wire = json.loads(json.dumps(sent.to_json()))
    assert [json.loads(json.dumps(each.to_json())) for each in RankStacks.all_from_json([wire])] == [wire]
    state = RunState(run="r", stuck=Stuck(seconds=900.0, groups=grouped([sent])))
    written = json.dumps(state.to_json())
    read = json.dumps(RunState.parse(written.encode()).to_json())
    assert json.loads(read)["stuck"] == json.loads(written)["stuck"]


HOSTILE: list[Any] = [
    None,
    3,
    "x",
    [],
    {},
    [[]],
    {"groups": 7},
    {"groups": [{"ranks": "all"}]},
    {"seconds": -1},
    float("nan"),
]


@pytest.mark.parametrize("value", HOSTILE)
def test_anything_can_be_read(value: Any) -> None:
    for each in (value, [value], [{"rank": value, "node": value, "processes": value}]):
        RankStacks.all_from_json(each)
    RankStacks.all_from_json(
        [{"processes": [{"pid": value, "threads": [{"frames": [{"name": value, "line": value}]}]}]}]
    )
    assert RunState.from_json({"run": "r", "stuck": value}).run == "r"
    assert Group.from_json({"ranks": [value], "lines": [value], "waits_for": [value]}).text


def test_names_of_a_job_stay_in_their_line_and_are_cut() -> None:
    wild = Frame(name="f\n[0] done\x1b[2J" + "x" * 9000, file="/workspace/a\nb.py", line=1)
    read = RankStacks.all_from_json(json.loads(json.dumps([rank(0, (wild,)).to_json()])))
    stuck = Stuck(seconds=900, groups=grouped(read))
    assert max(map(len, stuck.lines)) < 400
    assert "\n" not in stuck.text + "".join(stuck.lines)


def test_of_too_many_stacks_of_a_node_main_threads_stay() -> None:
    many = [
        RankStacks(
            rank=number, processes=[ProcessStacks(threads=[Thread(main=at == 0, frames=REDUCE) for at in range(9)])]
        )
        for number in range(20)
    ]
    assert bounded(many) == many
    smaller = bounded(many, most=50_000)
    assert [len(each.trains.threads) for each in smaller] == [1] * 20


def test_a_run_that_was_stuck_failed_for_a_reason_of_its_own() -> None:
    stuck = Stuck(seconds=900.0, groups=grouped([rank(0, REDUCE), rank(1, LOAD)]))
    state = RunState(run="r", state="done", result="failed", reason=stuck.text, stuck=stuck)
    assert told(state).startswith("stuck: nothing moved for 15 min; rank 0 is in ")
    failure = explain(state, ranks={}, launcher=["x"])
    assert failure is not None
    assert failure.lines == stuck.lines
    assert told(RunState(run="r", result="stopped", reason="stopped on request", stuck=stuck)) == "stopped on request"
