"""What is asked of a node's fetcher, and what it says of its work."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from hvdcloud.errors import ExitCode, UsageError
from hvdcloud.json_values import mapping, mappings, text

WAITING = "waiting"
LISTING = "listing"
FETCHING = "fetching"
VERIFYING = "verifying"
READY = "ready"
FAILED = "failed"
MOUNTED = "/var/lib/hvdcloud/data"
"""Where a node has the data sets that are folders of its host, by name."""
PHASES = (WAITING, LISTING, FETCHING, VERIFYING, READY, FAILED)

_NAME = re.compile(r"[a-z][-_a-z0-9]{0,62}")
_HINT = "the image and hvdcloud must be the same version: hvdcloud build"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One data set. `source` is as the node sees it; of one that is mounted, nothing is fetched."""

    name: str
    source: str
    per_node: str = "all"
    mounted: bool = False

    @classmethod
    def from_json(cls, value: object) -> DataSet:
        """Raises UsageError: the value is no data set, or its name could leave the folder of data sets."""
        given = mapping(value)
        try:
            found = cls(
                name=_typed(given, "name", str),
                source=_typed(given, "source", str),
                per_node=_typed(given, "per_node", str, "all"),
                mounted=_typed(given, "mounted", bool, default=False),
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is no data set: {error}", hint=_HINT) from None
        if not _NAME.fullmatch(found.name) or found.per_node not in ("all", "shard"):
            raise UsageError(f"this is no data set: {found.name!r}, per_node {found.per_node!r}", hint=_HINT)
        return found


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
            listed = given["sets"]
            if not isinstance(listed, list):
                raise TypeError("sets is no list")
            found = cls(
                sets=tuple(DataSet.from_json(each) for each in listed),
                index=_typed(given, "index", int, 0),
                count=_typed(given, "count", int, 1),
                endpoint=None if given.get("endpoint") is None else _typed(given, "endpoint", str),
            )
        except (KeyError, TypeError) as error:
            raise UsageError(f"this is no request for data: {error}", hint=_HINT) from None
        if not 0 <= found.index < found.count or len({each.name for each in found.sets}) < len(found.sets):
            what = f"node {found.index} of {found.count}, {len(found.sets)} sets"
            raise UsageError(f"this is no request for data: {what}", hint=_HINT)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class DataState:
    """How far a node is with one data set.

    Attributes:
        phase: one of PHASES.
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

    @classmethod
    def from_json(cls, value: object) -> DataState:
        """Whatever a node says; what is not of the expected kind is as if it were not there.

        Raises UsageError: it has no name or no known phase.
        """
        given = mapping(value)
        name, phase = given.get("name"), given.get("phase")
        if not isinstance(name, str) or phase not in PHASES:
            raise UsageError("this is no state of a data set", hint=_HINT)
        code = given.get("exit_code")
        failed = phase == FAILED
        return cls(
            name=name,
            phase=phase,
            bytes=_number(given, "bytes"),
            total_bytes=_number(given, "total_bytes"),
            files=_number(given, "files"),
            total_files=_number(given, "total_files"),
            seconds=_seconds(given.get("seconds")),
            error=text(given.get("error")) or ("no reason was given" if failed else None),
            hint=text(given.get("hint")) or None,
            exit_code=int(code) if code in list(ExitCode) else (int(ExitCode.NODE) if failed else None),
        )


def states_from_json(value: object) -> tuple[DataState, ...]:
    """The states in the answer of a node. Raises UsageError: one of them is none."""
    return tuple(DataState.from_json(each) for each in mappings(mapping(value).get("states")))


_MISSING: Any = object()


def _typed(given: Mapping[str, Any], key: str, kind: type[_T], default: Any = _MISSING) -> _T:
    value = given[key] if default is _MISSING else given.get(key, default)
    # A bool is an int to Python, and not to JSON.
    if type(value) is not kind:
        raise TypeError(f"{key} is {type(value).__name__}")
    return value


def _number(given: Mapping[str, Any], key: str) -> int:
    value = given.get(key)
    return max(0, value) if type(value) is int else 0


def _seconds(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 <= value < 1e12 else 0.0
