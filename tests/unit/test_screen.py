"""The screen of `hvdcloud top` fits every terminal and says what matters first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hvdcloud.cli.screen import Looks, bar, draw
from hvdcloud.lifecycle.top import NodeView, RunView, View
from hvdcloud.runs.log_lines import counted
from hvdcloud.runs.progress import Position, ProgressReader
from hvdcloud.runs.state import Member

GB = 1_000_000_000


def gpu(index: int, **changes: Any) -> dict[str, Any]:
    values = {
        "index": index,
        "utilization": 88,
        "memory": 11 * GB,
        "memory_total": 16 * GB,
        "temperature": 66,
        "power": 63,
    }
    return {**values, **changes}


def node(index: int, *, gpus: int = 2, **changes: Any) -> NodeView:
    sample = {
        "t": 1.0, "cpu": 62.0, "memory": 25 * GB, "memory_total": 63 * GB, "received": 12_000_000, "sent": 13_000_000,
        "waiting": index, "gpus": [gpu(each) for each in range(gpus)],
    }  # fmt: skip
    values: dict[str, Any] = {
        "name": f"digits-{index}",
        "state": "running",
        "silent": None,
        "trouble": "",
        "sample": sample,
    }
    return NodeView(**{**values, **changes})


RUN = RunView(
    run="20261121-101112-abcdef",
    state="running",
    reason="",
    ranks=4,
    seconds=192.0,
    position=Position(unit="epoch", number=37, total=60),
    numbers={"loss": 0.0123, "images/s": 4267.0},
    checkpoint_files=None,
)


def view(**changes: Any) -> View:
    values: dict[str, Any] = {
        "name": "digits", "provider": "gce", "whole": True, "gone": False, "age_seconds": 723.0,
        "dollars_so_far": 0.31, "dollars_per_hour": 2.18, "worst_case_dollars": 26.2,
        "nodes": [node(0), node(1)], "run": RUN, "events": [(1.0, "started"), (2.0, "every node is ready")],
        "log": [f"[0] epoch {number}/60: loss 0.5" for number in range(200)], "notice": "",
    }  # fmt: skip
    return View(**{**values, **changes})


def shown(what: View, **looks: Any) -> list[str]:
    looks = {"width": 80, "height": 24, **looks}
    lines = draw(what, Looks(**looks))
    assert len(lines) == looks["height"]
    assert max(line.cell_len for line in lines) <= looks["width"]
    return [line.plain for line in lines]


def test_it_has_nodes_gpus_run_money_events_and_log_on_eighty_columns() -> None:
    text = "\n".join(shown(view()))
    for said in (
        "digits  gce, 2 nodes, 12 min 03 s",
        "$2.18/h, $0.31 so far, at worst $26.20",
        "epoch 37/60",
        "62%",
        "loss 0.0123",
        "4,267 images/s",
        "digits-1",
        "25.0/63.0 GB",
        "12.0/13.0 MB/s",
        "GPU 1",
        "88 %",
        "11.0/16.0 GB",
        "66 °C",
        "63 W",
        "every node is ready",
        "[0] epoch 199/60",
        "s stops the run",
    ):
        assert said in text, said


@pytest.mark.parametrize("width", [20, 40, 79, 80, 91, 92, 200])
@pytest.mark.parametrize("height", [5, 10, 24, 60])
@pytest.mark.parametrize("nodes", [0, 1, 2, 8, 64])
def test_it_fits_every_terminal(width: int, height: int, nodes: int) -> None:
    lines = shown(view(nodes=[node(index, gpus=8) for index in range(nodes)]), width=width, height=height)
    assert lines[0].startswith("digits")
    assert lines[-1].startswith("q quits")


def test_gpus_share_a_line_where_there_is_no_room_for_each() -> None:
    nodes = [node(index, gpus=8) for index in range(4)]
    assert "\n".join(shown(view(nodes=nodes), height=60)).count("GPU ") == 32
    low = "\n".join(shown(view(nodes=nodes), height=24))
    assert low.count("8 GPUs") == 4
    assert "504 W" in low
    many = "\n".join(shown(view(nodes=[node(index, gpus=8) for index in range(64)]), height=24))
    assert "more; a taller terminal shows them" in many


def test_what_does_not_answer_or_is_gone_is_said_where_its_figures_were() -> None:
    silent = node(1, silent=7.3, trouble="node digits-1 does not answer at 10.0.0.2:2222: timed out")
    text = "\n".join(shown(view(nodes=[node(0), silent, node(2, state="gone")], whole=False)))
    assert "digits-1         no answer for 7 s  node digits-1 does not answer" in text
    assert "digits-2         gone" in text
    assert "NOT WHOLE" in text
    assert "GONE" in shown(view(gone=True))[0]


def test_a_gpu_that_measures_little_and_one_that_hangs() -> None:
    bare = [{"index": 0}, gpu(1, utilization=None, power=None)]
    some = node(0, sample={**node(0).sample, "gpus": bare})
    hanging = node(1, sample={"t": 1.0, "trouble": "x"}, trouble="nvidia-smi did not answer within 4 s")
    text = "\n".join(shown(view(nodes=[some, hanging])))
    assert "GPU 0" in text
    assert "66 °C" in text
    assert "nvidia-smi did not answer within 4 s" in text


def test_the_log_can_be_hidden_and_cannot_steer_the_terminal() -> None:
    evil = view(log=["[0] \x1b[2Jwiped\x07", "[0] 10%|#\r[0] 99%|##\r100%", "[1] wide 漢字" * 30])
    lines = shown(evil)
    text = "\n".join(lines)
    assert "wiped" in text
    assert "[0] 100%" in text
    assert all(char.isprintable() for line in lines for char in line)
    assert "LOG" not in shown(view(), log=False)
    assert any("l shows the log" in line for line in shown(view(), log=False))


def test_an_ended_run_says_how_and_nothing_offers_to_stop_it() -> None:
    ended = RunView(
        run="r",
        state="failed",
        reason="rank 1 on digits-1 exited with 3",
        ranks=2,
        seconds=3.0,
        position=None,
        numbers={},
        checkpoint_files=5,
    )
    text = "\n".join(shown(view(run=ended)))
    assert "failed" in text
    assert "exited with 3" in text
    assert "5 checkpoint files" in text
    assert "s stops" not in text
    assert "no run yet" in "\n".join(shown(view(run=None)))


def member(index: int, state: str, **changes: Any) -> Member:
    name = f"digits-{index}"
    values: dict[str, Any] = {"name": name, "alias": name, "state": state, "since": 1.0, "why": "", "slots": 2}
    return Member(**{**values, **changes})


def test_an_elastic_run_says_who_trains_and_where_the_others_stand() -> None:
    nodes = [
        node(0, member=member(0, "listed")),
        node(1, state="gone", member=member(1, "lost", why="no heartbeat for 15 s")),
        node(2, member=member(2, "joining", alias="digits-2-g2")),
        node(3, member=member(3, "ready", slots=0)),
    ]
    text = "\n".join(shown(view(nodes=nodes, run=replace(RUN, ranks=6, world=2, restarts=1)), height=30))
    for said in (
        "2 of 6 ranks, 1 restart",
        "digits-1         gone",
        "in the run: lost: no heartbeat for 15 s",
        "in the run: joining as digits-2-g2",
    ):
        assert said in text, said
    # That it trains, or only drives, needs no words.
    assert text.count("in the run") == 2


@pytest.mark.parametrize("height", [5, 10, 24])
def test_an_elastic_run_without_any_member_left_fits_and_says_so(height: int) -> None:
    nodes = [node(0, member=member(0, "lost", why="x" * 200))]
    nodes += [node(index, state="gone", member=member(index, "lost")) for index in range(1, 4)]
    for silent in (None, 9.0):
        nodes[0] = replace(nodes[0], silent=silent, sample={})
        text = "\n".join(shown(view(nodes=nodes, run=replace(RUN, world=0)), height=height))
        assert "0 of 4 ranks: waits for nodes" in text
    assert "s stops the run" in text
    more = "\n".join(shown(view(run=replace(RUN, ranks=4, world=6, restarts=3))))
    assert "6 ranks, 3 restarts" in more


def test_money_that_nothing_ends_is_said_and_none_too() -> None:
    assert "no end to it" in shown(view(worst_case_dollars=None))[0]
    assert "costs nothing" in shown(view(dollars_per_hour=0.0, dollars_so_far=0.0))[0]


def test_a_question_is_shown_where_the_keys_were() -> None:
    assert shown(view(), message="stop run r? y/n")[-1] == "stop run r? y/n"


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("share", [-1.0, 0.0, 0.001, 0.33, 0.5, 0.999, 1.0, 7.0])
def test_a_bar_is_always_as_wide_as_it_should_be(share: float, blocks: bool) -> None:
    assert bar(share, width=10, blocks=blocks).cell_len == 10


def test_the_position_is_the_last_epoch_with_its_total() -> None:
    reader = ProgressReader()
    assert reader.position is None
    reader.take(counted("step 10/100"))
    assert reader.position == Position(unit="step", number=10, total=100)
    for line in ("epoch 3/12: loss 0.4", "step 20/100"):
        reader.take(counted(line))
    assert reader.position == Position(unit="epoch", number=3, total=12)
