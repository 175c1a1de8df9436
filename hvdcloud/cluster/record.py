"""cluster.json: what this machine remembers of a cluster that it made.

A cluster may grow, shrink and get nodes back. Labels say how large it is, but Docker's cannot be changed once a
container exists, and no label says whether a node has the mesh key. The machine that made the cluster, the only one
that has its keys, remembers both, and what it remembers takes precedence over the labels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from hvdcloud.cluster.model import Cluster, Node, NodeState


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A node that has the mesh key and the pinned host keys of the others."""

    name: str
    cores: int = 0
    gpus: int = 0
    interface: str = ""
    made: str = ""
    """When its provider made it, which tells it from its successor of the same name; empty: not known."""
    made_after: tuple[str, ...] = ()
    """Runs that began before it replaced a node of its name: what its predecessor held of them is lost."""
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
    size: int = 0
    """How many nodes the cluster is to have."""
    nodes: tuple[MemberRecord, ...] = ()
    runs: tuple[str, ...] = ()
    """Those that were started from this machine, the newest last."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    """Keys of a later version, kept when the file is written again."""

    def has_joined(self, name: str) -> bool:
        """Whether the node of this name has the mesh key; true of every node if no node is recorded."""
        return not self.nodes or any(node.name == name for node in self.nodes)

    def is_replacement(self, node: Node) -> bool:
        """Whether the cluster's head replaced this node since it was recorded (node/elastic/replace.py)."""
        made = next((member.made for member in self.nodes if member.name == node.name), "")
        return bool(node.index and node.made and made and node.made != made)

    def lost_predecessors(self) -> set[tuple[int, str]]:
        """(index, run) where a node was replaced after the run, so that what its predecessor held is lost."""
        return {(node.index, run) for node in self.nodes for run in node.made_after}

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
        AttributeError, KeyError, TypeError, ValueError: it is no record.
    """
    nodes = tuple(_member(node) for node in value.get("nodes") or ())
    return ClusterRecord(
        id=str(value["id"]),
        created=str(value.get("created") or ""),
        image=str(value.get("image") or ""),
        bucket=str(value.get("bucket") or ""),
        # Files of earlier versions do not say it, and list every node.
        size=int(value.get("size") or len(nodes)),
        nodes=nodes,
        runs=tuple(map(str, value.get("runs") or ())),
        unknown=_unknown(ClusterRecord, value),
    )


def record_json(record: ClusterRecord) -> dict[str, Any]:
    """The content of cluster.json."""
    value: dict[str, Any] = asdict(record)
    nodes = [node.pop("unknown") | node for node in value["nodes"]]
    return {**value.pop("unknown"), **value, "nodes": nodes}


def _member(value: Any) -> MemberRecord:
    return MemberRecord(
        name=str(value["name"]),
        cores=int(value.get("cores") or 0),
        gpus=int(value.get("gpus") or 0),
        interface=str(value.get("interface") or ""),
        made=str(value.get("made") or ""),
        made_after=tuple(map(str, value.get("made_after") or ())),
        unknown=_unknown(MemberRecord, value),
    )


def _unknown(kind: type[ClusterRecord | MemberRecord], value: Mapping[str, Any]) -> dict[str, Any]:
    known = {each.name for each in fields(kind)}
    return {key: value[key] for key in value.keys() - known}
