"""A cluster whose nodes have ended themselves is not one that has lost some."""

from __future__ import annotations

import io

import pytest

from hvdcloud.cli.cluster import show_clusters
from hvdcloud.cli.status import show_status
from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.console import Console
from hvdcloud.lifecycle.status import StatusResult
from hvdcloud.providers.base import Listing
from tests.support.views import cluster


@pytest.mark.parametrize(
    ("states", "listed", "said"),
    [
        ("stopped stopped", "2/2    stopped  ", "; its nodes have stopped (hvdcloud pull, then hvdcloud down)"),
        ("running stopped", "2/2    NOT WHOLE, running, stopped  ", " (NOT WHOLE: 2 expected)"),
        ("stopped", "1/2    NOT WHOLE, stopped  ", " (NOT WHOLE: 2 expected)"),
        ("running running", "2/2    whole  ", ""),
    ],
)
def test_all_nodes_stopped_is_a_state_of_its_own(states: str, listed: str, said: str) -> None:
    nodes = tuple(
        Node(name=f"digits-{index}", index=index, id=f"{index}", state=NodeState(state))
        for index, state in enumerate(states.split())
    )
    found = cluster(provider="local", owner="me", nodes=nodes, dollars_per_hour=0.0, worst_case_dollars=0.0)
    status = StatusResult(
        cluster=found, whole=found.whole, runs=(), runs_unknown="", age_seconds=1.0, dollars_so_far=0.0
    )
    out = io.StringIO()
    show_clusters(Console(out=out), Listing(clusters=(found,)))
    assert listed in out.getvalue()
    out = io.StringIO()
    show_status(Console(out=out), status)
    assert out.getvalue().splitlines()[0] == f"cluster digits on local, 1.0 s old, made by me{said}"
