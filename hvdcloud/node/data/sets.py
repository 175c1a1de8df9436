"""What a node's fetcher says of its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hvdcloud.runs.reports import NodeData

WAITING = "waiting"
LISTING = "listing"
FETCHING = "fetching"
VERIFYING = "verifying"
READY = "ready"
FAILED = "failed"
MOUNTED = "/var/lib/hvdcloud/data"
"""Where a node has the data sets that are folders of its host, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataState(NodeData):
    """How far a node is with one data set. `seconds`: since the listing began, until it was ready or failed."""

    name: str
    phase: str = WAITING


def states_from_json(value: Mapping[str, Any] | None) -> tuple[DataState, ...]:
    """The states that `{"states": […]}` says; None: there are none."""
    return tuple(DataState(**each) for each in (value or {"states": ()})["states"])
