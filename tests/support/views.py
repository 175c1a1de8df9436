"""Views of clusters, as `hvdcloud top` gets them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from hvdcloud.cluster.model import Cluster, Node, NodeState
from hvdcloud.lifecycle.top import NodeView, RunView, View
from hvdcloud.runs.progress import Position
from hvdcloud.runs.state import RunState

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
    state=RunState(run="20261121-101112-abcdef", state="running", np=4),
    reason="",
    seconds=192.0,
    position=Position(unit="epoch", number=37, total=60),
    numbers={"loss": 0.0123, "images/s": 4267.0},
)


def run(**changes: Any) -> RunView:
    """The run, with changes of its state."""
    return replace(RUN, state=replace(RUN.state, **changes))


def cluster(**changes: Any) -> Cluster:
    values: dict[str, Any] = {
        "name": "digits", "id": "a1b2c3", "owner": "ann", "provider": "gce", "image": "image", "bucket": "gs://b",
        "created": datetime(2026, 11, 21, tzinfo=timezone.utc), "expected_nodes": 2,
        "nodes": tuple(Node(name=f"digits-{n}", index=n, id=str(n), state=NodeState.RUNNING) for n in range(2)),
        "dollars_per_hour": 2.18, "worst_case_dollars": 26.2,
    }  # fmt: skip
    return Cluster(**{**values, **changes})


def view(**changes: Any) -> View:
    log = [f"[0] epoch {number}/60: loss 0.5" for number in range(200)]
    values: dict[str, Any] = {
        "cluster": cluster(), "gone": False, "age_seconds": 723.0, "dollars_so_far": 0.31,
        "nodes": [node(0), node(1)], "run": RUN,
        "log": log, "notice": "",
    }  # fmt: skip
    return View(**{**values, **changes})


def many_nodes(count: int, *, gpus: int = 2) -> View:
    return view(nodes=[node(index, gpus=gpus) for index in range(count)])
