"""The screen of `hvdcloud top` fits every terminal and says what matters first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hvdcloud.cli.screen import SCROLLBAR, Looks, bar, draw
from hvdcloud.lifecycle.top import RunView, View
from hvdcloud.runs.progress import LogReader, Position
from hvdcloud.runs.reports import NodeData
from hvdcloud.runs.slow_ranks import SlowRanks
from hvdcloud.runs.state import Member
from tests.support.views import RUN, gpu, many_nodes, node, view


def shown(what: View, **looks: Any) -> list[str]:
    """The lines that are seen before anything is scrolled, above that of the keys."""
    looks = {"width": 80, "height": 23, **looks}
    drawn = draw(what, Looks(**looks))
    nodes, log = drawn.nodes[: drawn.nodes_height], drawn.log[len(drawn.log) - drawn.log_height :]
    assert len(log) == min(drawn.log_height, len(drawn.log))
    assert max((line.cell_len for line in (*drawn.nodes, *drawn.log)), default=0) <= looks["width"] - SCROLLBAR
    lines = [*drawn.head, *nodes, *drawn.middle, *log, *drawn.foot]
    assert (
        len(drawn.head) + drawn.nodes_height + len(drawn.middle) + drawn.log_height + len(drawn.foot) <= looks["height"]
    )
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
    ):
        assert said in text, said


@pytest.mark.parametrize("width", [20, 40, 79, 80, 91, 92, 200])
@pytest.mark.parametrize("height", [4, 9, 23, 59])
@pytest.mark.parametrize("nodes", [0, 1, 2, 8, 64])
def test_it_fits_every_terminal(width: int, height: int, nodes: int) -> None:
    what = many_nodes(nodes, gpus=8)
    assert shown(what, width=width, height=height)[0].startswith("digits")
    lines = shown(replace(what, notice="no answer"), width=width, height=height)
    assert lines[-1] == "no answer"


def test_gpus_share_a_line_where_there_is_no_room_for_each() -> None:
    four = many_nodes(4, gpus=8)
    assert "\n".join(shown(four, height=59)).count("GPU ") == 32
    low = "\n".join(shown(four))
    assert low.count("8 GPUs") == 4
    assert "504 W" in low
    # Unless the user wants it otherwise.
    assert "\n".join(shown(four, height=59, each_gpu=False)).count("8 GPUs") == 4
    assert "GPU 1" in "\n".join(shown(four, each_gpu=True))


def test_every_node_and_every_gpu_has_its_line_however_low_the_terminal_is() -> None:
    drawn = draw(many_nodes(64, gpus=8), Looks(width=80, height=23, each_gpu=True))
    assert len(drawn.nodes) == 64 * 9
    assert drawn.nodes[-9].plain.startswith("digits-63")
    assert drawn.nodes_height >= 10


def test_a_long_name_keeps_its_end_and_is_whole_where_there_is_room() -> None:
    name = "the-whole-name-of-a-cluster-that-is-long-63"
    long = view(nodes=[node(0), node(1, name=name)])
    assert any(line.startswith("…-that-is-long-63") or "is-long-63 " in line for line in shown(long))
    wide = shown(long, width=140, height=44)
    assert any(line.startswith(f"{name} running") for line in wide)
    # Its columns are below their names.
    header, row = (next(line for line in wide if line.startswith(each)) for each in ("NODE", "digits-0"))
    assert header.index("STATE") == row.index("running")
    assert header.index("MEMORY") == row.index("25.0/63.0 GB")


@pytest.mark.parametrize(
    ("width", "header", "row"),
    [
        (
            60,
            "NODE             STATE    CPU    MEMORY         IN / OUT   …",
            "digits-1         running    62 % 25.0/63.0 GB   12.0/13.0 …",
        ),
        (
            80,
            "NODE             STATE    CPU         MEMORY         IN / OUT         TO UPLOAD",
            "digits-1         running  ###..  62 % 25.0/63.0 GB   12.0/13.0 MB/s   1",
        ),
        (
            140,
            "NODE             STATE    CPU                MEMORY         IN / OUT         TO UPLOAD",
            "digits-1         running  #######.....  62 % 25.0/63.0 GB   12.0/13.0 MB/s   1",
        ),
    ],
)
def test_a_narrow_terminal_keeps_the_state_and_gives_up_the_bar(width: int, header: str, row: str) -> None:
    lines = shown(view(), width=width, blocks=False)
    found = [next(line.rstrip() for line in lines if line.startswith(name)) for name in ("NODE", "digits-1")]
    assert found == [header, row]


def test_what_does_not_answer_or_is_gone_is_said_where_its_figures_were() -> None:
    silent = node(1, silent=7.3, trouble="node digits-1 does not answer at 10.0.0.2:2222: timed out")
    text = "\n".join(shown(view(nodes=[node(0), silent, node(2, state="gone")], whole=False)))
    assert "digits-1         silent   no answer for 7 s  node digits-1 does not answer" in text
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


def test_the_rank_that_the_others_wait_for_is_named() -> None:
    slow = SlowRanks(ranks=[3], nodes=["digits-1"], share=0.38, recent=True)
    text = "\n".join(shown(view(run=replace(RUN, slow_ranks=slow))))
    assert "rank 3 (digits-1): the others wait 38 % of the last minute for it" in text


def test_an_ended_run_says_how() -> None:
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


def test_a_run_that_waits_for_data_says_how_far_each_node_is() -> None:
    nodes = [
        node(0, data=NodeData(node="digits-0", phase="ready")),
        node(1, data=NodeData(node="digits-1", phase="fetching", bytes=5, total_bytes=20)),
    ]
    text = "\n".join(shown(view(nodes=nodes), height=30))
    assert "data: fetching, 25 % of 20 B" in text
    assert text.count("data: ") == 1


@pytest.mark.parametrize("height", [4, 9, 23])
def test_an_elastic_run_without_any_member_left_fits_and_says_so(height: int) -> None:
    nodes = [node(0, member=member(0, "lost", why="x" * 200))]
    nodes += [node(index, state="gone", member=member(index, "lost")) for index in range(1, 4)]
    for silent in (None, 9.0):
        nodes[0] = replace(nodes[0], silent=silent, sample={})
        text = "\n".join(shown(view(nodes=nodes, run=replace(RUN, world=0)), height=height))
        assert "0 of 4 ranks: waits for nodes" in text
    more = "\n".join(shown(view(run=replace(RUN, ranks=4, world=6, restarts=3))))
    assert "6 ranks, 3 restarts" in more


def test_money_that_nothing_ends_is_said_and_none_too() -> None:
    assert "no end to it" in shown(view(worst_case_dollars=None))[0]
    assert "costs nothing" in shown(view(dollars_per_hour=0.0, dollars_so_far=0.0))[0]


def test_a_message_is_shown_above_the_keys_before_what_the_provider_says() -> None:
    troubled = view(notice="the provider does not answer")
    assert shown(troubled)[-1] == "the provider does not answer"
    assert shown(troubled, message="run r has ended")[-1] == "run r has ended"


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("share", [-1.0, 0.0, 0.001, 0.33, 0.5, 0.999, 1.0, 7.0])
def test_a_bar_is_always_as_wide_as_it_should_be(share: float, blocks: bool) -> None:
    assert bar(share, width=10, blocks=blocks).cell_len == 10


def test_the_position_is_the_last_epoch_with_its_total() -> None:
    reader = LogReader(elastic=False)
    assert reader.position is None
    reader.feed(b"[0] step 10/100\n")
    assert reader.position == Position(unit="step", number=10, total=100)
    reader.feed(b"[0] epoch 3/12: loss 0.4\n[0] step 20/100\n")
    assert reader.position == Position(unit="epoch", number=3, total=12)
