"""Stacks: how ranks are grouped, what is shown of them, and that nothing a job can put into them breaks a reader."""

from __future__ import annotations

import json
from typing import Any

from hvdcloud.node.monitor.stacks import bounded
from hvdcloud.runs.stacks import Frame, ProcessStacks, RankStacks, Stuck, Thread, grouped
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


def test_stacks_survive_their_way() -> None:
    sent = rank(3, LOAD)
    wire = json.loads(json.dumps(sent.to_json()))
    assert [json.loads(json.dumps(each.to_json())) for each in RankStacks.all_from_json([wire])] == [wire]
    state = RunState(run="r", stuck=Stuck(seconds=900.0, groups=grouped([sent])))
    written = json.dumps(state.to_json())
    read = json.dumps(RunState.from_json(json.loads(written)).to_json())
    assert json.loads(read)["stuck"] == json.loads(written)["stuck"]


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
