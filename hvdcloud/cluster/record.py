"""cluster.json: what this machine remembers of a cluster that it made.

A cluster may grow, shrink and get nodes back. Labels say how large it is, but Docker's cannot be changed once a
container exists, and no label says whether a node has the mesh key. The machine that made the cluster, the only one
that has its keys, remembers both, and what it remembers takes precedence over the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from hvdcloud.cluster.model import Cluster, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A node that has the mesh key and the pinned host keys of the others."""

    name: str
    cores: int = 0
    gpus: int = 0
    interface: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a later version, kept when the file is written again."""

    @property
    def index(self) -> int:
        """The node's number in the cluster."""
        return int(self.name.rpartition("-")[2])

    def slots(self, configured: int | None) -> int:
        """How many ranks the node takes: `run.slots_per_node`, else one per GPU, else one."""
        return configured or self.gpus or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """A cluster that came up, and the nodes that have joined it."""

    id: str
    created: str = ""
    image: str = ""
    bucket: str = ""
    project: str = ""
    """The folder of the project that it was made for."""
    size: int = 0
    """How many nodes the cluster should have."""
    nodes: tuple[MemberRecord, ...] = ()
    runs: tuple[str, ...] = ()
    """The runs that were started from this machine, the newest last."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it was made with, by key, as `lifecycle/changes.py` compares it; empty: an earlier version made it."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Its data sets as texts (config/data.py), by name: the folders that are mounted, and the newest run's buckets."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a later version, kept when the file is written again."""

    def has_joined(self, name: str) -> bool:
        """Whether the node of this name has the mesh key; true of every node if no node is recorded."""
        return not self.nodes or any(node.name == name for node in self.nodes)

    def applied_to(self, cluster: Cluster) -> Cluster:
        """The cluster with the recorded size; a node that runs and has not joined is still starting."""
        if self.id != cluster.id or not self.nodes:
            return cluster
        nodes = (
            replace(node, state=NodeState.STARTING)
            if node.state is NodeState.RUNNING and not self.has_joined(node.name)
            else node
            for node in cluster.nodes
        )
        return replace(cluster, expected_nodes=self.size, nodes=tuple(nodes))

    def without(self, names: Collection[str]) -> ClusterRecord:
        """The record without these members: nodes of these names that appear from now on have not joined."""
        return replace(self, nodes=tuple(node for node in self.nodes if node.name not in names))


def parse_record(value: Any) -> ClusterRecord:
    """The record that `record_json` described, also in a file of an earlier or a later version.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: it is not a record.
    """
    nodes = tuple(_read(MemberRecord, node, name=str(node["name"])) for node in value.get("nodes") or ())
    # Files of earlier versions do not say the size, and list every node.
    size = int(value.get("size") or len(nodes))
    return _read(ClusterRecord, value, id=str(value["id"]), size=size, nodes=nodes)


def record_json(record: ClusterRecord) -> dict[str, Any]:
    """The content of cluster.json."""
    value: dict[str, Any] = asdict(record)
    nodes = [node.pop("unknown") | node for node in value["nodes"]]
    return {**value.pop("unknown"), **value, "nodes": nodes}


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": lambda value: str(value or ""),
    "int": lambda value: int(value or 0),
    "Mapping[str, str]": lambda value: {str(key): str(each) for key, each in (value or {}).items()},
    "tuple[str, ...]": lambda value: tuple(map(str, value or ())),
}
"""How a field is read, by its type as it is written."""
_T = TypeVar("_T", MemberRecord, ClusterRecord)


def _read(kind: type[_T], value: Mapping[str, Any], **given: Any) -> _T:
    """A record from a JSON object, each field by its type; `given` holds those that are read otherwise."""
    types = kind.__annotations__
    given["unknown"] = {key: value[key] for key in value.keys() - types.keys()}
    return kind(**{name: _READERS[types[name]](value.get(name)) for name in types.keys() - given.keys()}, **given)
