"""What the screen of `hvdcloud top` says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hvdcloud.cli.screen import events, head, rows
from hvdcloud.lifecycle.top import View
from hvdcloud.runs.progress import LogReader, Position
from hvdcloud.runs.reports import NodeData, RankWaits, UploadReport
from hvdcloud.runs.state import Member
from tests.support.views import cluster, gpu, node, run, view


def said(what: View) -> list[str]:
    """The lines above the table."""
    return head(what).plain.splitlines()


def cells(what: View, name: str) -> list[str]:
    return [cell.plain for cell in rows(what)[name]]


def test_it_has_money_run_nodes_gpus_and_events() -> None:
    first, second, third = said(view())
    assert first == "digits  $2.18/h, $0.31 so far, at worst $26.20  gce, 2 nodes, 12 min 03 s"
    assert second == "run 20261121-101112-abcdef  running  3 min 12 s, 4 ranks"
    assert third == "epoch 37/60 62%   loss 0.0123   4,267 images/s"
    assert list(rows(view())) == [
        "digits-0",
        "digits-0 0",
        "digits-0 1",
        *(f"digits-1{x}" for x in ("", " 0", " 1")),
    ]
    assert cells(view(), "digits-1") == ["digits-1", "running", " 62 %", "25.0/63.0 GB", "12.0/13.0 MB/s", "1"]
    assert cells(view(), "digits-1 1") == ["  GPU 1", "66 °C 63 W", " 88 %", "11.0/16.0 GB", "", ""]
    assert [line[10:] for line in events(view(), most=4).plain.splitlines()] == ["started", "every node is ready"]
    assert events(view(), most=1).plain.endswith("every node is ready")


def test_what_does_not_answer_or_is_gone_is_said_above_the_table_wherever_that_is_scrolled_to() -> None:
    silent = node(1, silent=7.3, trouble="node digits-1 does not answer at 10.0.0.2:2222: timed out")
    what = view(
        nodes=[node(0), silent, node(2, state="gone")], cluster=cluster(expected_nodes=3), notice="no zone answers"
    )
    assert said(what)[0].startswith("digits  NOT WHOLE")
    assert said(what)[3:] == [
        "no zone answers",
        "digits-1: no answer for 7 s: node digits-1 does not answer at 10.0.0.2:2222: timed out",
    ]
    assert cells(what, "digits-1") == ["digits-1", "silent", "", "", "", ""]
    assert cells(what, "digits-2") == ["digits-2", "gone", "", "", "", ""]
    assert "digits  GONE" in said(view(gone=True))[0]
    many = said(view(nodes=[node(index, silent=9.0) for index in range(64)]))
    assert many[3] == "digits-0: no answer for 9 s"
    assert many[7:] == ["and 60 more"]


def test_a_gpu_that_measures_little_and_one_that_hangs() -> None:
    bare = [{"index": 0}, gpu(1, utilization=None, power=None)]
    some = node(0, sample={**node(0).sample, "gpus": bare})
    hanging = node(1, sample={"t": 1.0, "trouble": "x"}, trouble="nvidia-smi did not answer within 4 s")
    what = view(nodes=[some, hanging, node(2, sample={})])
    assert cells(what, "digits-0 0") == ["  GPU 0", "", "", "", "", ""]
    assert cells(what, "digits-0 1") == ["  GPU 1", "66 °C ", "", "11.0/16.0 GB", "", ""]
    assert cells(what, "digits-2")[1] == "asking …"
    assert "digits-1: nvidia-smi did not answer within 4 s" in said(what)


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    waits = [
        RankWaits(rank=rank, node=f"digits-{rank}", waited=20.0, seconds=60.0, recently=0.0 if rank == 3 else 0.4)
        for rank in range(4)
    ]
    what = view(run=run(waits=waits))
    assert any(line.startswith("rank 3 (digits-3): the others wait") for line in said(what))


def test_an_ended_run_says_how_and_its_members_are_no_trouble() -> None:
    ended = run(state="done", result="failed", world=1, checkpoints=UploadReport(files=5), members=[member(0, "lost")])
    what = view(run=replace(ended, reason="rank 1 on digits-1 exited with 3", position=None, numbers={}))
    assert said(what)[1:] == [
        "run 20261121-101112-abcdef  failed  3 min 12 s, 4 ranks, 5 checkpoint files",
        "rank 1 on digits-1 exited with 3",
    ]
    assert "no run yet" in said(view(run=None))[1]


def member(index: int, state: str, **changes: Any) -> Member:
    name = f"digits-{index}"
    values: dict[str, Any] = {"name": name, "alias": name, "state": state, "since": 1.0, "why": "", "slots": 2}
    return Member(**{**values, **changes})


def test_an_elastic_run_says_who_trains_and_where_the_others_stand() -> None:
    members = [
        *(member(0, "listed"), member(1, "lost", why="no heartbeat for 15 s")),
        *(member(2, "joining", alias="digits-2-g2"), member(3, "ready", slots=0)),
    ]
    nodes = [node(0), node(1, state="gone"), node(2), node(3)]
    lines = said(view(nodes=nodes, run=run(np=6, world=2, restarts=1, members=members)))
    assert "2 of 6 ranks, 1 restart" in lines[1]
    # That it trains, or only drives, needs no words.
    assert lines[3:] == [
        "digits-1 in the run: lost: no heartbeat for 15 s",
        "digits-2 in the run: joining as digits-2-g2",
    ]
    assert "0 of 4 ranks: waits for nodes" in said(view(run=run(world=0)))[1]
    assert "6 ranks, 3 restarts" in said(view(run=run(world=6, restarts=3)))[1]


def test_a_run_that_waits_for_data_says_how_far_each_node_is() -> None:
    data = [
        NodeData(node="digits-0", phase="ready"),
        NodeData(node="digits-1", phase="fetching", bytes=5, total_bytes=20),
    ]
    assert said(view(run=run(state="starting", data=data)))[3:] == ["digits-1: data: fetching, 25 % of 20 B"]


def test_money_that_nothing_ends_is_said_and_none_too() -> None:
    assert "no end to it" in said(view(cluster=cluster(worst_case_dollars=None)))[0]
    assert "costs nothing" in said(view(cluster=cluster(dollars_per_hour=0.0), dollars_so_far=0.0))[0]


def test_the_position_is_the_last_epoch_with_its_total() -> None:
    reader = LogReader(elastic=False)
    assert reader.position is None
    reader.feed(b"[0] step 10/100\n")
    assert reader.position == Position(unit="step", number=10, total=100)
    reader.feed(b"[0] epoch 3/12: loss 0.4\n[0] step 20/100\n")
    assert reader.position == Position(unit="epoch", number=3, total=12)
