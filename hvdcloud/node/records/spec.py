"""What a node knows of one run; written by `prepare`, read by everything that works on the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hvdcloud.errors import UsageError
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.paths import check_run_id, run_dir


class Spec(NamedTuple):
    """One run, as one node sees it. Holds no secret."""

    run: str
    cluster: str
    node: int
    """This node's index; 0 is the head."""
    name: str
    """This node's name."""
    bucket: str
    """file:///DIR or gs://BUCKET[/PREFIX], as reachable from this node."""
    bucket_endpoint: str | None
    keep_every: float
    """Seconds between two looks at the checkpoint directory."""
    slots: int
    cores: int
    command: tuple[str, ...]
    resume: str | None
    """The run whose checkpoints were put into the checkpoint directory."""
    workspace_bytes: int = 10**9
    """How much of what ranks write in the project's folder is kept, besides models."""
    elastic: bool = False
    """Whether nodes may leave and join while it runs."""
    interface: str | None = None
    """The network interface that Horovod uses, where this node joins a run that is on."""
    stuck: float | None = None
    """Seconds without any sign of work after which the run is ended; None: never."""
    grace: float = 30.0
    """Seconds from SIGTERM to SIGKILL where somebody asks for the run's end."""
    data: Mapping[str, Any] | None = None
    """The data sets that this node needs, as `DataRequest` (node/data/sets.py) writes them; None: the run has none."""

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> Spec:
        """Check a header or a spec.json. Raises UsageError: something is missing or has the wrong type."""
        try:
            spec = cls(
                run=check_run_id(value["run"]),
                cluster=str(value["cluster"]),
                node=int(value["node"]),
                name=str(value["name"]),
                bucket=str(value["bucket"]),
                bucket_endpoint=value.get("bucket_endpoint"),
                keep_every=float(value["keep_every"]),
                slots=max(1, int(value["slots"])),
                cores=max(1, int(value["cores"])),
                command=tuple(str(part) for part in value["command"]),
                resume=value.get("resume"),
                workspace_bytes=int(value.get("workspace_bytes", 10**9)),
                elastic=bool(value.get("elastic", False)),
                interface=value.get("interface"),
                stuck=None if value.get("stuck") is None else float(value["stuck"]),
                grace=float(value.get("grace", 30.0)),
                data=_data(value.get("data")),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            why = f"the description of the run cannot be used: {type(error).__name__}: {error}"
            hint = "the image and hvdcloud must be the same version: hvdcloud build"
            raise UsageError(why, hint=hint) from error
        if not spec.command:
            raise UsageError("the run has no command", hint="set run.command, or `hvdcloud run -- COMMAND`")
        return spec

    @classmethod
    def load(cls, run: str) -> Spec:
        """Of a run that was prepared on this node. Raises UsageError: it was not."""
        value = read_json(run_dir(run) / "spec.json")
        if value is None:
            raise UsageError(f"run {run} was not prepared on this node", hint="hvdcloud run sends a run to every node")
        return cls.from_mapping(value)

    def save(self) -> None:
        """Write spec.json."""
        write_json(run_dir(self.run) / "spec.json", self._asdict())


def _data(value: object) -> Mapping[str, Any] | None:
    if value is None:
        return None
    # Most runs have none, and each of their processes reads a spec.
    from hvdcloud.node.data.sets import DataRequest

    return DataRequest.from_json(value).to_json()
