"""What is known of a run: its state, its events, its members and its uploads, read and written in one place.

The head writes it as JSON; the laptop reads it over SSH, and later from the bucket. A reader may meet a writer of
another version, and the content of a bucket is not trusted: keys may be unknown, missing or of another kind, and none
of that is an error. Pure; copied into the image, so it needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hvdcloud.json_values import mapping, mappings
from hvdcloud.runs.reports import (
    Instant,
    Name,
    NodeData,
    RankRecord,
    RankWaits,
    Report,
    UploadReport,
    instant,
    number,
    read_fields,
    words_of,
)
from hvdcloud.runs.spec import About, Elastic
from hvdcloud.runs.stacks import Stuck
from hvdcloud.units import counted


def read_sample(value: object) -> dict[str, Any]:
    """A node's sample (node/monitor/sample.py): the plausible numbers in it, those of its GPUs, and its trouble."""
    found = mapping(value)
    numbers = (key for key, each in found.items() if number(each) is not None)
    sample: dict[str, Any] = {key: found[key] for key in numbers if key not in ("gpus", "trouble")}
    gpus = mappings(found.get("gpus"))
    if gpus:
        sample["gpus"] = [{key: each for key, each in gpu.items() if number(each) is not None} for gpu in gpus]
    if isinstance(found.get("trouble"), str):
        sample["trouble"] = found["trouble"]
    return sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Member(Report):
    """A node of an elastic run."""

    name: str
    alias: str
    """Under which Horovod knows it: another one each time that the node has come back."""
    state: str
    """preparing | joining | ready | listed | failed | lost | leaving | gone"""
    since: Instant | None
    why: str

    @property
    def takes_part(self) -> bool:
        """Whether it trains: Horovod has it on its list."""
        return self.state == "listed"

    @property
    def has_left(self) -> bool:
        """Whether it failed, was lost or has left."""
        return self.state in ("failed", "lost", "gone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(Report):
    """Something that happened to a run."""

    at: Instant
    name: str
    node: str = ""
    detail: str = ""
    ranks: int | None = None
    """Of a `world` event: how many train from then on."""
    nodes: int | None = None
    """Of a `world` event: on how many nodes."""

    @classmethod
    def all_from_json(cls, values: object) -> list[Event]:
        """The events in a JSON list, in its order, without those that do not say when they happened."""
        found = [(instant(each.get("t")), each) for each in mappings(values)]
        return [read_fields(cls, each, at=at, name=words_of(each.get("event"))) for at, each in found if at is not None]

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {"t": found.pop("at"), "event": found.pop("name"), **found}

    @property
    def text(self) -> str:
        if self.name == "world" and self.ranks is not None:
            on = f" on {counted(self.nodes, 'node')}" if self.nodes is not None else ""
            return f"world: {counted(self.ranks, 'rank')}{on}"
        node = "" if self.detail.startswith(self.node) else self.node
        return f"{self.name}{f': {node}' if node else ''}{f': {self.detail}' if self.detail else ''}"


@dataclass(slots=True, kw_only=True)
class RunState(Report):
    """The state of a run. Its supervisor on the head changes it and writes it; all others only read it."""

    run: Name = ""
    cluster: Name = ""
    state: str = ""
    """starting | running | finishing | done"""
    result: str = ""
    """succeeded | failed | stopped | lost; empty while it runs"""
    exit_code: int | None = None
    reason: str = ""
    np: int = 0
    """How many ranks it started with; 0: not known."""
    controller: str = ""
    nodes: Sequence[str] = ()
    started: Instant | None = None
    ended: Instant | None = None
    ranks: Sequence[RankRecord] = ()
    nodes_lost: Sequence[str] = ()
    checkpoints: UploadReport = field(default_factory=UploadReport)
    about: About = field(default_factory=About)
    down_when_done: bool = False
    elastic: Elastic | None = None
    """None: nodes cannot leave or join while it runs."""
    world: int | None = None
    """How many ranks of an elastic run train now; None: the run is static, or has not begun."""
    restarts: int = 0
    """How often the ranks were started again."""
    members: Sequence[Member] = ()
    """The nodes of an elastic run."""
    supervisor_dead: bool = False
    """The supervisor was killed; how the run ended is not written down yet."""
    stuck: Stuck | None = None
    """Where its ranks were, if it was ended because nothing moved any more."""
    data: Sequence[NodeData] = ()
    """How far the nodes' data sets are; empty: the run has none."""
    data_seconds: float | None = None
    """For how long its start waited for them; None: it has none, or waits still."""
    launched: Instant | None = None
    """When the launcher was started first; None, as below: not yet."""
    training_since: Instant | None = None
    """When every rank had started; of an elastic run, the first."""
    training_until: Instant | None = None
    """When the run began to end: from then on, ranks are ended and checkpoints uploaded."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest of each number that the end of its log names, once it has ended: `loss`, `accuracy`."""
    waits: Sequence[RankWaits] = ()
    """How long ranks have waited for each other, by rank; empty: it is not counted."""

    @property
    def waits_for_data(self) -> bool:
        """Whether it has not started its ranks because nodes still fetch their data."""
        return self.state == "starting" and not all(each.ready for each in self.data)

    @property
    def ended_before_ranks(self) -> bool:
        """Whether it ended while its nodes fetched their data: no rank has written anything."""
        return self.done and bool(self.data) and self.data_seconds is None and self.launched is None

    @property
    def done(self) -> bool:
        return self.state == "done"

    @classmethod
    def all_from_json(cls, values: object) -> list[RunState]:
        """The states in a JSON list, as a node answers it, in its order."""
        return [state for state in map(cls.from_json, mappings(values)) if state.run]


def ranks_present(*, ranks: int, now: int | None) -> str:
    """`4 ranks`; `3 of 4 ranks` where some are missing."""
    return counted(now or ranks, "rank") if now is None or now >= ranks else f"{now} of {ranks} ranks"
