"""An elastic run in `status`, `logs` and `top`: from the state and the events that its supervisor writes."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any, cast

import pytest

from hvdcloud.cli.status import show_status
from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.console import Console, plain
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.logs import _check_rank
from hvdcloud.lifecycle.run_result import result_of
from hvdcloud.lifecycle.status import StatusResult
from hvdcloud.lifecycle.top import _Watch
from hvdcloud.remote.ssh import Session
from hvdcloud.runs.state import Event, RunState

NAMES = ("digits-0", "digits-1", "digits-2", "digits-3")


def member(name: str, state: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "alias": name, "state": state, "since": 1_795_000_000.0, "why": "", "slots": 2, **more}


def elastic(**changes: Any) -> dict[str, Any]:
    """state.json of a run that has lost a node and gets another back."""
    state = {
        "run": "20261121-101112-abcdef", "cluster": "digits", "state": "running", "result": None, "exit_code": None,
        "reason": "", "np": 8, "nodes": list(NAMES), "started": 1_795_000_000.0, "ended": None, "ranks": [],
        "nodes_lost": [], "checkpoints": {"complete": False, "files": 0},
        "elastic": {"min": 1, "max": 4}, "world": 4, "restarts": 0,
        "members": [
            member(NAMES[0], "listed"), member(NAMES[1], "listed"),
            member(NAMES[2], "lost", why="no heartbeat for 5 s"), member(NAMES[3], "joining", alias="digits-3-g2"),
        ],
    }  # fmt: skip
    return {**state, **changes}


def static(**changes: Any) -> dict[str, Any]:
    """What the supervisor of a static run writes, and that of any run before there were elastic ones."""
    keys = ("elastic", "world", "restarts", "members")
    return {key: value for key, value in elastic(**changes).items() if key not in keys}


def node(name: str) -> Node:
    return Node(name=name, index=int(name[-1]), state=NodeState.RUNNING, id=name, address="10.0.0.2")


def status_of(states: Sequence[dict[str, Any]]) -> StatusResult:
    cluster = Cluster(
        name="digits", id="abcdef", provider="local", owner="me", created=datetime.now(timezone.utc), image="i",
        bucket="file:///b", expected_nodes=4, nodes=tuple(node(name) for name in NAMES),
        worst_case_dollars=0.0,
    )  # fmt: skip
    return StatusResult(
        cluster=cluster, whole=True, runs=[result_of("digits", RunState.from_json(state)) for state in states],
        runs_unknown="",
        age_seconds=9.0, dollars_so_far=0.0, nodes_gone=0,
    )  # fmt: skip


def shown(*states: dict[str, Any]) -> str:
    out = io.StringIO()
    show_status(Console(out=out), status_of(states))
    return out.getvalue()


def test_status_names_every_member_and_how_many_ranks_train() -> None:
    text = shown(static(state="done", result="failed"), elastic())
    assert "run 20261121-101112-abcdef continues with 4 of 8 ranks\n" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["digits-2", "-", "lost", "11:06:40Z", "no", "heartbeat", "for", "5", "s"] in lines
    assert ["digits-3", "digits-3-g2", "joining", "11:06:40Z", "-"] in lines
    assert "with 8 ranks; horovodrun was started again twice" in shown(elastic(world=8, restarts=2))
    everything_lost = [member(name, "lost", why="the connection broke") for name in NAMES]
    assert "no rank of run 20261121-101112-abcdef trains: it waits for nodes" in shown(
        elastic(world=0, members=everything_lost)
    )


def test_status_of_runs_that_are_static_or_over_is_as_it_was() -> None:
    assert "MEMBER" not in shown(static())
    assert "MEMBER" not in shown(elastic(state="done", result="succeeded"))
    assert "MEMBER" not in shown()


def test_status_as_json_has_members_world_and_restarts() -> None:
    document = json.loads(json.dumps(plain(status_of([elastic(restarts=1)]))))
    run = document["runs"][0]
    assert (run["world"], run["ranks"], run["restarts"]) == (4, 8, 1)
    assert [each["state"] for each in run["members"]] == ["listed", "listed", "lost", "joining"]
    assert run["members"][3]["alias"] == "digits-3-g2"
    old = plain(result_of("digits", RunState.from_json(static())))
    assert (old["world"], old["restarts"], list(old["members"])) == (None, 0, [])


def test_a_rank_that_a_static_run_never_had_is_refused() -> None:
    for rank in (None, 0, 7):
        _check_rank(RunState.from_json(static()), rank)
    with pytest.raises(UsageError, match="has no rank 8") as refused:
        _check_rank(RunState.from_json(static()), 8)
    assert refused.value.hint == "its ranks are 0 to 7"
    _check_rank(RunState.from_json(elastic()), 99)  # It may have grown meanwhile.


def test_a_state_that_says_no_number_of_ranks_refuses_none() -> None:
    _check_rank(RunState.from_json({"run": "r", "elastic": {"min": 1}}), 99)
    _check_rank(RunState.from_json({"run": "r"}), 99)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "world", "ranks": "1", "nodes": "1"}, "world: 1 rank on 1 node"),
        ({"event": "world", "ranks": "0", "nodes": "0"}, "world: 0 ranks on 0 nodes"),
        ({"event": "world"}, "world"),
        ({"event": "lost a node", "node": "n-2", "detail": "silent"}, "lost a node: n-2: silent"),
        ({"event": "lost a node", "detail": "n-2: silent"}, "lost a node: n-2: silent"),
        ({"event": "lost a node", "node": "n-2", "detail": "n-2: silent"}, "lost a node: n-2: silent"),
        ({"event": "node joins", "node": "n-2", "detail": "as n-2-g2"}, "node joins: n-2: as n-2-g2"),
        ({"event": "started again", "detail": "from the newest checkpoint"},
         "started again: from the newest checkpoint"),
        ({"event": "asked to stop"}, "asked to stop"),
        ({}, ""),
    ],
)  # fmt: skip
def test_an_event_is_described_in_words(event: dict[str, Any], said: str) -> None:
    read = Event.from_json({"t": 1.0, **event})
    assert read is not None
    assert read.text == said


def watched(*answers: dict[str, Any]) -> _Watch:
    """The head's watch after these answers of the node program."""
    watch = _Watch(node(NAMES[0]), cast(Session, None))
    for answer in answers:
        watch.take(answer)
    return watch


def look(state: dict[str, Any] | None, text: str = "", **more: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"now": 1_795_000_100.0, "run": "20261121-101112-abcdef", "sample": {}}
    if state is not None:
        answer |= {"state": state, "log": {"offset": len(text), "text": text}, "events": []}
    return {**answer, **more}


def test_top_follows_rank_zero_of_an_elastic_run_to_another_worker() -> None:
    log = "[0] epoch 1/9: loss 0.9\n[2] epoch 2/9: loss 0.8\n[2] epoch 3/9: loss 0.7\n"
    events = [{"t": 1_795_000_050.0, "event": "lost a node", "node": "digits-2", "detail": "silent"}]
    # The first answer may come before the run has a state.
    run, told_events, lines, count = watched(look(None), look(elastic(), log, events=events)).run_view()
    assert run is not None
    assert run.position is not None
    assert (run.position.number, run.numbers, len(lines), count) == (3, {"loss": 0.7}, 3, 3)
    assert (run.state.world, run.state.np, run.state.restarts) == (4, 8, 0)
    assert [each.name for each in run.state.members] == list(NAMES)
    assert [what for _, what in told_events] == ["started", "lost a node: digits-2: silent"]
    fixed, *_ = watched(look(static(), log)).run_view()
    assert fixed is not None
    assert fixed.position is not None
    assert (fixed.position.number, fixed.state.world, list(fixed.state.members)) == (1, None, [])


def test_top_of_a_run_that_was_lost_with_all_its_members() -> None:
    lost = elastic(
        state="done", result="lost", reason="no node is left", ended=1_795_000_090.0, world=0, restarts=1,
        members=[member(name, "lost") for name in NAMES],
    )  # fmt: skip
    run, events, *_ = watched(look(lost, "[0] epoch 1/9\n")).run_view()
    assert run is not None
    assert (run.state.result, run.state.done, run.state.restarts) == ("lost", True, 1)
    assert events[-1][1] == "lost: the head says: no node is left"
