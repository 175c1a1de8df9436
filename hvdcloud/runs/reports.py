"""What nodes report of a run: how ranks ended and how long they waited, how far uploads and data sets are.

JSON of another version, or of a bucket that is not trusted, is read as runs/state.py says. Pure; copied into the image,
so it needs the standard library only, and loads fast: every rank of a run begins with it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hvdcloud.json_values import mapping, mappings, parse_object, text
from hvdcloud.visible import words

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LONGEST_METRIC = 40
_MOST_METRICS = 20
_MOST_WHOLE = 1_000_000_000
_MOST = 1e15
_END_OF_TIME = 250_000_000_000.0
_LONGEST = 160
_MOST_TEXTS = 100

Instant = float
"""Seconds since the epoch."""
Name = str
"""As `plain_name` reads it."""
Short = str
"""One line, cut at its end."""
Bytes = int
"""Which may be more than a run has ranks."""
Tail = str
"""One line, cut at its beginning."""


def whole(value: object) -> int | None:
    """A number of ranks or nodes, also if it is written as text; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST_WHOLE:
        return None
    return int(value)


def number(value: object) -> float | None:
    """A number of a plausible size; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _MOST else None


def instant(value: object) -> float | None:
    """Seconds since the epoch that a calendar knows; None for anything else."""
    found = number(value)
    return found if found is not None and 0 <= found < _END_OF_TIME else None


def plain_name(value: object) -> str:
    """A name that may stand in a command to type: one word without a meaning for a shell, and no option; else ""."""
    text = str(value) if value else ""
    return text if _NAME.fullmatch(text) else ""


def words_of(value: object) -> str:
    return str(value) if value else ""


def texts_of(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else []


def _numbers(value: object) -> dict[str, float]:
    found = {
        plain: known
        for name, each in mapping(value).items()
        if (known := number(each)) is not None
        for plain in [str(name)]
        if len(plain) <= _LONGEST_METRIC
    }
    return dict(sorted(found.items())[:_MOST_METRICS])


def _short(value: object) -> str:
    return words(text(value), most=_LONGEST)


def _tail(value: object) -> str:
    said = text(value)
    return " ".join((f"…{said[-_LONGEST:]}" if len(said) > _LONGEST else said).split())


_READERS: dict[str, Callable[[Any], Any]] = {
    "str": words_of,
    "str | None": lambda value: words_of(value) or None,
    "Name": plain_name,
    "Short": _short,
    "Tail": _tail,
    "bool": bool,
    "bool | None": lambda value: None if value is None else bool(value),
    "int": lambda value: whole(value) or 0,
    "int | None": whole,
    "float": lambda value: max(0.0, number(value) or 0.0),
    "float | None": number,
    "Instant | None": instant,
    "Bytes": lambda value: int(max(0.0, number(value) or 0.0)),
    "Sequence[str]": texts_of,
    "Sequence[Short]": lambda value: [_short(each) for each in texts_of(value)[:_MOST_TEXTS]],
    "Sequence[int]": lambda value: [whole(each) or 0 for each in value] if isinstance(value, list) else [],
    "Mapping[str, float]": _numbers,
}
"""How a field is read, by its type as it is written."""
_T = TypeVar("_T")
_R = TypeVar("_R", bound="Report")


def read_fields(kind: type[_T], value: Mapping[str, Any], **given: object) -> _T:
    """A dataclass from a JSON object, each field by its type; `given` holds those that are read otherwise."""
    wanted = {name: type_ for name, type_ in kind.__annotations__.items() if name not in given}
    return kind(**{name: _READERS[type_](value.get(name)) for name, type_ in wanted.items()}, **given)


class Report:
    """A dataclass that one program writes as JSON and another reads, field by field, by their types."""

    __slots__ = ()
    most = 1 << 20
    """How many of a list are read."""

    def __init_subclass__(cls) -> None:
        name = cls.__name__
        _READERS[name] = cls.from_json
        _READERS[f"{name} | None"] = lambda value: cls.from_json(value) if isinstance(value, dict) else None
        _READERS[f"Sequence[{name}]"] = cls.all_from_json

    @classmethod
    def from_json(cls: type[_R], value: object) -> _R:
        """What a JSON object says; what it lacks, or says in another way, is empty."""
        return read_fields(cls, mapping(value))

    @classmethod
    def all_from_json(cls: type[_R], values: object) -> list[_R]:
        """The objects in a JSON list, in its order."""
        return [cls.from_json(each) for each in mappings(values)[: cls.most]]

    def to_json(self) -> dict[str, Any]:
        """As `from_json` reads it."""
        found: dict[str, Any] = asdict(cast("DataclassInstance", self))
        return found


def json_lines(data: bytes) -> list[dict[str, Any]]:
    """The JSON objects in a file with one on each line, without lines that are cut off or hold something else."""
    return [found for line in data.splitlines() if (found := parse_object(line)) is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadReport(Report):
    """How far the checkpoints of a node, or of a whole run, are in the bucket."""

    complete: bool = False
    """Every file is in the bucket, and the manifests say so."""
    files: int = 0
    """How many were uploaded."""
    others: int = 0
    """How many of these are neither models nor in the checkpoint directory."""
    pending: Sequence[str] = ()
    """Still being written, or changed while they were read."""
    errors: Sequence[str] = ()
    """Sentences; one for each file, or for the bucket."""
    skipped: Sequence[str] = ()
    """Sentences about what is not uploaded: links that lead elsewhere, names that no checkpoint may have."""
    left_out: Sequence[str] = ()
    """Files and folders of the project's folder that are too large to be kept."""

    @classmethod
    def merged(cls, reports: Mapping[str, UploadReport]) -> UploadReport:
        """The reports of several nodes, by their names, as one."""
        return cls(
            complete=bool(reports) and all(report.complete for report in reports.values()),
            files=sum(report.files for report in reports.values()),
            others=sum(report.others for report in reports.values()),
            pending=[f"{node}: {name}" for node, report in reports.items() for name in report.pending],
            errors=[f"{node}: {error}" for node, report in reports.items() for error in report.errors],
            skipped=[f"{node}: {what}" for node, report in reports.items() for what in report.skipped],
            left_out=sorted({name for report in reports.values() for name in report.left_out}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord(Report):
    """How a rank ended, if it has ended."""

    rank: int
    node: str = ""
    exit_code: int | None = None
    signal: int | None = None
    terminated: bool | None = None
    """Whether the launcher had asked for its end, which is then not what made the run fail; None: not known."""
    out_of_memory: bool = False
    """The kernel killed it because there was no memory left."""
    ended: Instant | None = None

    @property
    def end(self) -> str:
        """How it ended, in words."""
        if self.out_of_memory:
            return "was killed by the kernel, which was out of memory"
        return f"exited with {self.exit_code}" if self.signal is None else f"was killed by {signal_name(self.signal)}"

    @property
    def text(self) -> str:
        """Its end in words."""
        return f"rank {self.rank} on {self.node} {self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeData(Report):
    """How far the data sets of a node are, taken together."""

    node: Name = ""
    phase: str = ""
    """waiting | fetching | ready | failed"""
    bytes: Bytes = 0
    """That it has, verified or on the way; `total_bytes`: 0 until the buckets are listed."""
    total_bytes: Bytes = 0
    files: int = 0
    error: str = ""
    """Of a data set that failed, with its name."""
    hint: str = ""
    exit_code: int | None = None
    """Which kind of error it is (errors.py)."""

    @property
    def ready(self) -> bool:
        """Whether ranks may start."""
        return self.phase == "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWaits(Report):
    """How long a rank has waited in Horovod's collectives: for other ranks, and for the data to arrive."""

    rank: int
    node: Name = ""
    waited: float | None = None
    """Seconds, of `seconds`: from its first collective to its newest."""
    seconds: float | None = None
    recently: float | None = None
    """The part of the last minute in which it waited, 0 to 1; None: not known yet."""

    @property
    def share(self) -> float | None:
        """The part of its time in which it waited, 0 to 1; None: not known."""
        if self.waited is None or not self.seconds or self.seconds < 0:
            return None
        return min(1.0, max(0.0, self.waited / self.seconds))


def signal_name(number: int) -> str:
    """`signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
