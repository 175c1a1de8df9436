"""What a node knows of one run; written by `prepare`, read by everything that works on the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.json_values import mapping
from hvdcloud.node.channel import BEAT_SECONDS
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.paths import check_run_id, run_dir
from hvdcloud.runs.spec import DataRequest, Elastic, Host, RunSpec

START_SECONDS = 15.0
"""How long an agent may take to start, over ssh and beside everything else that starts then."""


@dataclass(frozen=True, kw_only=True)
class Spec(RunSpec):
    """The spec of a run as it is kept on this node."""

    name: str
    """This node's name."""
    cores: int
    beat: float = BEAT_SECONDS
    """Seconds between two heartbeats of the supervisor and its agents."""
    start: float = START_SECONDS
    """Seconds after which an agent that has not started is given up."""

    @property
    def names(self) -> list[str]:
        """The nodes that it starts with, the head first."""
        return [host.name for host in self.hosts]

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> Spec:
        """Check a header or a spec.json. Raises UsageError: something is missing or has the wrong type."""

        def optional(key: str, kind: Callable[[Any], Any], otherwise: Any = None) -> Any:
            return otherwise if value.get(key) is None else kind(value[key])

        try:
            elastic = value.get("elastic")
            spec = cls(
                run=check_run_id(value["run"]),
                cluster=str(value["cluster"]),
                bucket=str(value["bucket"]),
                bucket_endpoint=optional("bucket_endpoint", str),
                keep_every=float(value["keep_every"]),
                workspace_bytes=optional("workspace_bytes", int, 10**9),
                command=tuple(str(part) for part in value["command"]),
                resume=optional("resume", check_run_id),
                stuck=optional("stuck", float),
                grace=optional("grace", float, 30.0),
                hosts=tuple(
                    Host(name=str(host["name"]), index=int(host["index"]), slots=int(host["slots"]))
                    for host in value.get("hosts", ())
                ),
                np=optional("np", int, 0),
                horovodrun=tuple(str(part) for part in value.get("horovodrun", ())),
                controller=optional("controller", str, "gloo"),
                gloo_timeout=optional("gloo_timeout", float, 30.0),
                elastic=elastic and Elastic(min=int(elastic["min"]), max=int(elastic["max"])),
                down_when_done=bool(value.get("down_when_done")),
                detached=bool(value.get("detached")),
                about=mapping(value.get("about")),
                node=int(value["node"]),
                slots=max(0, int(value["slots"])),
                data=optional("data", DataRequest.from_json),
                interface=optional("interface", str),
                name=str(value["name"]),
                cores=max(1, int(value["cores"])),
                beat=optional("beat", float, BEAT_SECONDS),
                start=optional("start", float, START_SECONDS),
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
        write_json(run_dir(self.run) / "spec.json", self.to_json())
