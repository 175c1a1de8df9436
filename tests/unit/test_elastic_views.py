"""An elastic run in `status` and `logs`: from the state that its supervisor writes."""

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

STATIC: dict[str, Any] = {"run": "r", "state": "running", "np": 8, "nodes_lost": [], "ranks": []}
JOINING = {"name": "digits-3", "alias": "digits-3-g2", "state": "joining", "since": 1_795_000_000.0, "why": ""}
ELASTIC = {**STATIC, "elastic": {"min": 1, "max": 4}, "world": 4, "restarts": 1, "members": [JOINING]}


@pytest.mark.parametrize(("state", "shown"), [(ELASTIC, (4, 8, 1, [JOINING])), (STATIC, (None, 8, 0, []))])
def test_status_as_json_has_members_world_and_restarts(state: dict[str, Any], shown: tuple[object, ...]) -> None:
    out = io.StringIO()
    Console(as_json=True, out=out).raw_json(result_of("digits", RunState.from_json(state)))
    run = json.loads(out.getvalue())
    assert (run["world"], run["ranks"], run["restarts"], run["members"]) == shown


def test_a_rank_that_a_static_run_never_had_is_refused() -> None:
    for rank in (None, 0, 7):
        _check_rank(RunState.from_json(STATIC), rank)
    with pytest.raises(UsageError, match="has no rank 8"):
        _check_rank(RunState.from_json(STATIC), 8)
    _check_rank(RunState.from_json(ELASTIC), 99)  # It may have grown meanwhile.
