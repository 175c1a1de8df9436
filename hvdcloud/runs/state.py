"""What is known of a run: its state, its events, its members and its uploads, read and written in one place.

The head writes it as JSON; the laptop reads it over SSH, and later from the bucket. A reader may meet a writer of
another version, and the content of a bucket is not trusted: keys may be unknown, missing or of another kind, and none
of that is an error. Pure; copied into the image, so it needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hvdcloud.json_values import mapping, mappings, parse_object
from hvdcloud.runs.reports import (
    Instant,
    Name,
    NodeData,
    RankRecord,
    RankWaits,
    UploadReport,
    instant,
    json_lines,
    number,
    read_fields,
    texts_of,
    whole,
    words_of,
)
from hvdcloud.runs.stacks import Stuck


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
class Member:
    """A node of an elastic run."""

    name: str
    alias: str
    """Under which Horovod knows it: another one each time that the node has come back."""
    state: str
    """preparing | joining | ready | listed | failed | lost | leaving | gone"""
    since: Instant | None
    why: str
    slots: int | None
    """Ranks that it takes; 0: it only drives; None: not known."""

    @property
    def takes_part(self) -> bool:
        """Whether it does its part: it trains (Horovod has it on its list), or drives the others."""
        return self.state == "listed" or (self.slots == 0 and self.state == "ready")

    @property
    def has_left(self) -> bool:
        """Whether it failed, was lost or has left."""
        return self.state in ("failed", "lost", "gone")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Member:
        name = words_of(value.get("name"))
        alias, state = words_of(value.get("alias")) or name, words_of(value.get("state")) or "?"
        return read_fields(cls, value, name=name, alias=alias, state=state, since=instant(value.get("since")) or None)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
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
    def from_json(cls, value: object) -> Event | None:
        """An event as the head wrote it; None if it does not say when it happened."""
        if not isinstance(value, dict) or (at := instant(value.get("t"))) is None:
            return None
        return read_fields(cls, value, at=at, name=words_of(value.get("event")))

    @classmethod
    def all_from_json(cls, values: object) -> list[Event]:
        """The events in a JSON list, in its order."""
        found = map(cls.from_json, values if isinstance(values, list) else ())
        return [event for event in found if event is not None]

    @classmethod
    def parse_lines(cls, data: bytes) -> list[Event]:
        """The events in a file with one on each line, in its order."""
        return cls.all_from_json(json_lines(data))

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        return {"t": found.pop("at"), "event": found.pop("name"), **found}

    @property
    def text(self) -> str:
        if self.name == "world" and self.ranks is not None:
            on = f" on {self.nodes} node{'s' if self.nodes != 1 else ''}" if self.nodes is not None else ""
            return f"world: {self.ranks} rank{'s' if self.ranks != 1 else ''}{on}"
        node = "" if self.detail.startswith(self.node) else self.node
        return f"{self.name}{f': {node}' if node else ''}{f': {self.detail}' if self.detail else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What the laptop knew of the cluster when it started the run. Holds no secret."""

    provider: str = ""
    machine: str | None = None
    image: str = ""
    command: str = ""
    dollars_per_hour: float | None = None
    boot_seconds: float | None = None
    """From when its nodes began to cost until they were ready, of its first run; None: of a later one, or not known."""
    gpus: int = 0
    """Of all nodes together."""

    @classmethod
    def from_json(cls, value: object) -> About:
        return read_fields(cls, value, machine=words_of(value.get("machine"))) if isinstance(value, dict) else cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticLimits:
    """Between how many nodes an elastic run may have; a head that only drives is one of them."""

    min: int | None
    max: int | None


@dataclass(slots=True, kw_only=True)
class RunState:
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
    nodes_preempted: Sequence[str] = ()
    """Those that had the notice of a preemption; in an elastic run they may be back."""
    checkpoints: UploadReport = field(default_factory=UploadReport)
    about: Mapping[str, Any] = field(default_factory=dict)
    """As the laptop sent it; `About` reads it."""
    down_when_done: bool = False
    elastic: ElasticLimits | None = None
    """None: nodes cannot leave or join while it runs."""
    world: int | None = None
    """How many ranks of an elastic run train now; None: the run is static, or has not begun."""
    restarts: int = 0
    """How often horovodrun was started again."""
    members: Sequence[Member] = ()
    """The nodes of an elastic run."""
    left_behind: Sequence[str] | None = None
    """Processes that could not be ended; None: the run has not ended."""
    supervisor_dead: bool = False
    """The supervisor was killed; how the run ended is not written down yet."""
    stuck: Stuck | None = None
    """Where its ranks were, if it was ended because nothing moved any more."""
    data: Sequence[NodeData] = ()
    """How far the nodes' data sets are; empty: the run has none."""
    data_seconds: float | None = None
    """For how long its start waited for them; None: it has none, or waits still."""
    launched: Instant | None = None
    """When horovodrun was started first; None, as below: not yet."""
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
    def parse(cls, data: bytes) -> RunState:
        """The state in a file or an object of a bucket; without `run` where the bytes are none."""
        return cls.from_json(parse_object(data))

    @classmethod
    def from_json(cls, value: object) -> RunState:
        if not isinstance(value, dict):
            return cls()
        limits = value.get("elastic")
        elastic = read_fields(ElasticLimits, limits) if isinstance(limits, dict) else None
        members = [Member.from_json(each) for each in mappings(value.get("members")) if words_of(each.get("name"))]
        left_behind, about = value.get("left_behind"), mapping(value.get("about"))
        return read_fields(
            cls,
            value,
            ranks=[RankRecord.from_json(each) for each in mappings(value.get("ranks"))],
            checkpoints=UploadReport.from_json(value.get("checkpoints")),
            about={key: known for key, known in about.items() if not isinstance(known, (dict, list))},
            elastic=elastic,
            world=whole(value.get("world")) if elastic is not None else None,
            members=sorted(members, key=lambda member: (len(member.name), member.name)),
            left_behind=texts_of(left_behind) if left_behind is not None else None,
            stuck=Stuck.from_json(value.get("stuck")),
            data=[NodeData.from_json(each) for each in mappings(value.get("data"))],
            waits=RankWaits.all_from_json(value.get("waits")),
        )

    @classmethod
    def all_from_json(cls, values: object) -> list[RunState]:
        """The states in a JSON list, as a node answers it, in its order."""
        return [state for state in map(cls.from_json, mappings(values)) if state.run]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def ranks_text(*, ranks: int, now: int | None) -> str:
    """`4 ranks`; `3 of 4 ranks` where some are missing."""
    if now is None or now == ranks:
        return f"{ranks} rank{'s' if ranks != 1 else ''}"
    return f"{now} of {ranks} ranks" if now < ranks else f"{now} ranks"


def restarts_text(count: int) -> str:
    """`; horovodrun was started again twice`, after other words; empty where it was not."""
    if not count:
        return ""
    return f"; horovodrun was started again {({1: 'once', 2: 'twice'}).get(count, f'{count} times')}"
