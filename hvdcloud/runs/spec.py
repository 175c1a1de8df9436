"""What a run is: the laptop writes it, every node reads it. Pure; copied into the image."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hvdcloud.errors import UsageError
from hvdcloud.json_values import mapping
from hvdcloud.runs.reports import Report

_DATA_NAME = re.compile(r"[a-z][-_a-z0-9]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node of a run."""

    name: str
    index: int = 0
    """0: the head."""
    slots: int
    """Ranks that it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Elastic(Report):
    """How far a run may shrink and grow, in nodes."""

    min: int
    max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class About(Report):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One data set. `source` is as the node sees it; of one that is mounted, nothing is fetched."""

    name: str
    source: str
    per_node: str = "all"
    mounted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRequest(Report):
    """All data sets of a node, which is number `index` of the `count` that share those with per_node: shard."""

    sets: tuple[DataSet, ...]
    index: int = 0
    count: int = 1
    endpoint: str | None = None
    """Another Cloud Storage endpoint, such as `http://127.0.0.1:9023`."""

    @classmethod
    def from_json(cls, value: object) -> DataRequest:
        """Raises UsageError: the value is no request."""
        given = mapping(value)
        try:
            found = cls(**{**given, "sets": tuple(DataSet(**each) for each in given["sets"])})
            names = {each.name for each in found.sets}
            fits = 0 <= found.index < found.count and len(names) == len(found.sets)
            if not fits or not all(map(_DATA_NAME.fullmatch, names)):
                raise ValueError(f"node {found.index} of {found.count}, sets {sorted(names)}")
        except (KeyError, TypeError, ValueError) as error:
            hint = "the image and hvdcloud must be the same version: hvdcloud build"
            raise UsageError(f"this is no request for data: {error}", hint=hint) from None
        return found


@dataclass(frozen=True, kw_only=True)
class RunSpec(Report):
    """One run, as one node sees it. Holds no secret."""

    run: str
    cluster: str
    bucket: str
    """file:///DIR or gs://BUCKET[/PREFIX], as reachable from this node."""
    bucket_endpoint: str | None = None
    keep_every: float
    """Seconds between two looks at the checkpoint directory."""
    workspace_bytes: int = 10**9
    """How much of what ranks write in the project's folder is kept, besides models."""
    command: tuple[str, ...]
    resume: str | None = None
    """The run whose checkpoints are put into the checkpoint directory."""
    stuck: float | None = None
    """Seconds without any sign of work after which the run is ended; None: never."""
    grace: float = 30.0
    """Seconds from SIGTERM to SIGKILL where somebody asks for the run's end."""

    hosts: tuple[Host, ...] = ()
    """Those that it starts with, the head first."""
    np: int = 0
    """How many ranks it starts with."""
    launcher: str = "horovod"
    """What starts the ranks: horovod, torchrun or each (launchers.py)."""
    horovodrun: tuple[str, ...] = ()
    """With launcher horovod: horovodrun's command line, without what each rank runs."""
    controller: str = "gloo"
    gloo_timeout: float = 30.0
    """Seconds after which a frozen node ends the run."""
    elastic: Elastic | None = None
    """None: nodes cannot leave or join while it runs."""
    down_when_done: bool = False
    detached: bool = False
    """Nobody follows it when it starts."""
    about: About = field(default_factory=About)

    node: int = 0
    """This node's index; 0 is the head."""
    slots: int = 1
    """Ranks that this node takes."""
    data: DataRequest | None = None
    """The run's data sets, and which share of them is this node's; None: the run has none."""
