"""What a node's fetcher says of its work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

WAITING = "waiting"
LISTING = "listing"
FETCHING = "fetching"
VERIFYING = "verifying"
READY = "ready"
FAILED = "failed"
MOUNTED = "/var/lib/hvdcloud/data"
"""Where a node has the data sets that are folders of its host, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataState:
    """How far a node is with one data set.

    Attributes:
        phase: WAITING, LISTING, FETCHING, VERIFYING, READY or FAILED.
        bytes: on this node and verified, also where an earlier fetch brought them.
        total_bytes: of all that this node is to have; 0 until it is listed.
        seconds: since the listing began, until it was ready or failed.
        error: one sentence; None unless it failed.
        exit_code: as `hvdcloud` ends with it; None unless it failed.
    """

    name: str
    phase: str = WAITING
    bytes: int = 0
    total_bytes: int = 0
    files: int = 0
    total_files: int = 0
    seconds: float = 0.0
    error: str | None = None
    hint: str | None = None
    exit_code: int | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def states_from_json(value: Mapping[str, Any] | None) -> tuple[DataState, ...]:
    """The states that `{"states": […]}` says; None: there are none."""
    return tuple(DataState(**each) for each in (value or {"states": ()})["states"])
