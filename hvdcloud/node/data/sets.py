"""What is asked of a node's fetcher, and what it says of its work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.json_values import mapping

WAITING = "waiting"
LISTING = "listing"
FETCHING = "fetching"
VERIFYING = "verifying"
READY = "ready"
FAILED = "failed"
MOUNTED = "/var/lib/hvdcloud/data"
"""Where a node has the data sets that are folders of its host, by name."""

_NAME = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_HINT = "the image and hvdcloud must be the same version: hvdcloud build"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One data set. `source` is as the node sees it; of one that is mounted, nothing is fetched."""

    name: str
    source: str
    per_node: str = "all"
    mounted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest:
    """All data sets of a node, which is number `index` of the `count` that share those with per_node: shard.

    Attributes:
        endpoint: another Cloud Storage endpoint, such as `http://127.0.0.1:9023`.
    """

    sets: tuple[DataSet, ...]
    index: int = 0
    count: int = 1
    endpoint: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "sets": [asdict(each) for each in self.sets]}

    @classmethod
    def from_json(cls, value: object) -> DataRequest:
        """Raises UsageError: the value is no request."""
        given = mapping(value)
        try:
            found = cls(**{**given, "sets": tuple(DataSet(**each) for each in given["sets"])})
            names = {each.name for each in found.sets}
            fits = 0 <= found.index < found.count and len(names) == len(found.sets)
            if not fits or not all(map(_NAME.fullmatch, names)):
                raise ValueError(f"node {found.index} of {found.count}, sets {sorted(names)}")
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"this is no request for data: {error}", hint=_HINT) from None
        return found


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
