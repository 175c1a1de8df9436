"""What a node knows of one run; written by `prepare`, read by everything that works on the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import UsageError
from hvdcloud.node.bucket import open_bucket_here
from hvdcloud.node.channel import BEAT_SECONDS
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.paths import check_run_id, run_dir
from hvdcloud.runs.launchers import PROGRAMS
from hvdcloud.runs.spec import About, DataRequest, Elastic, Host, RunSpec

if TYPE_CHECKING:
    from hvdcloud.storage.base import Bucket


@dataclass(frozen=True, kw_only=True)
class Spec(RunSpec):
    """The spec of a run as it is kept on this node."""

    name: str
    """This node's name."""
    cores: int
    beat: float = BEAT_SECONDS
    """Seconds between two heartbeats of the supervisor and its agents."""

    @property
    def names(self) -> list[str]:
        """The nodes that it starts with, the head first."""
        return [host.name for host in self.hosts]

    @property
    def program(self) -> str:
        """What starts the ranks, as a sentence names it: horovodrun."""
        return PROGRAMS[self.launcher]

    @property
    def threads(self) -> int:
        """Cores for each rank of this node: with the default of all cores, they would fight for them."""
        return max(1, self.cores // self.slots)

    def open_bucket(self) -> Bucket:
        """The run's bucket, as this node opens it. Raises HvdcloudError: as `open_bucket_here`."""
        return open_bucket_here(self.bucket, endpoint=self.bucket_endpoint)

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> Spec:
        """Read a header or a spec.json, which a program of the same version wrote. Raises UsageError: something is
        missing, or of another kind."""
        given = {each.name: value[each.name] for each in fields(cls) if value.get(each.name) is not None}
        try:
            for name in ("run", "resume"):
                if name in given:
                    check_run_id(given[name])
            for name in ("command", "horovodrun"):
                given[name] = tuple(map(str, given.get(name, ())))
            given["hosts"] = tuple(Host(**each) for each in given.get("hosts", ()))
            if "elastic" in given:
                given["elastic"] = Elastic(**given["elastic"])
            if "about" in given:
                given["about"] = About(**given["about"])
            if "data" in given:
                given["data"] = DataRequest.from_json(given["data"])
            spec = cls(**given)
        except (TypeError, ValueError) as error:
            why = f"the description of the run cannot be used: {type(error).__name__}: {error}"
            hint = "the image and hvdcloud must be the same version: hvdcloud build"
            raise UsageError(why, hint=hint) from error
        if spec.launcher not in PROGRAMS:
            hint = "the image and hvdcloud must be the same version: hvdcloud build"
            raise UsageError(f"the run has an unknown launcher: {spec.launcher!r}", hint=hint)
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
        write_json(run_dir(self.run) / "spec.json", self.to_json())
