"""An elastic run in `status`, `logs` and `top`: from the state and the events that its supervisor writes."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from hvdcloud.console import Console
from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.logs import _check_rank
from hvdcloud.lifecycle.run_result import result_of
from hvdcloud.runs.state import RunState

NAMES = ("digits-0", "digits-1", "digits-2", "digits-3")


def plain(value: object) -> Any:
    """What --json prints."""
    out = io.StringIO()
    Console(as_json=True, out=out, err=out).raw_json(value)
    return json.loads(out.getvalue())


def member(name: str, state: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "alias": name, "state": state, "since": 1_795_000_000.0, "why": "", **more}


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


def test_status_as_json_has_members_world_and_restarts() -> None:
    run = plain(result_of("digits", RunState.from_json(elastic(restarts=1))))
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
