"""Stacks: how ranks are grouped, what is shown of them, and that nothing a job can put into them breaks a reader."""

from __future__ import annotations

import json

from hvdcloud.node.monitor.stacks import bounded
from hvdcloud.runs.stacks import Frame, ProcessStacks, RankStacks, Stuck, Thread, grouped

FRAMES = [Frame(name="DistributedOptimizer.step", file=f"{'/deep' * 10}/optimizer.py", line=line) for line in range(6)]


def test_names_of_a_job_stay_in_their_line_and_are_cut() -> None:
    wild = Frame(name="f\n[0] done\x1b[2J" + "x" * 9000, file="/workspace/a\nb.py", line=1)
    sent = RankStacks(rank=0, processes=[ProcessStacks(threads=[Thread(main=True, frames=(wild,))])])
    stuck = Stuck(seconds=900, groups=grouped([RankStacks.from_json(json.loads(json.dumps(sent.to_json())))]))
    assert max(map(len, stuck.lines)) < 400
    assert "\n" not in stuck.text + "".join(stuck.lines)


def test_of_too_many_stacks_of_a_node_main_threads_stay() -> None:
    many = [
        RankStacks(
            rank=number, processes=[ProcessStacks(threads=[Thread(main=at == 0, frames=FRAMES) for at in range(9)])]
        )
        for number in range(20)
    ]
    assert bounded(many) == many
    smaller = bounded(many, most=50_000)
    assert [len(each.trains.threads) for each in smaller] == [1] * 20
