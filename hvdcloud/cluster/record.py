"""cluster.json: what this machine remembers of a cluster that it made.

A cluster may grow, shrink and get nodes back. Labels say how large it is, but Docker's cannot be changed once a
container exists, and no label says whether a node has the mesh key. The machine that made the cluster, the only one
that has its keys, remembers both, and what it remembers takes precedence over the labels.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from hvdcloud.cluster.model import Cluster, NodeState

MOUNTS = "data."
"""How keys of `settings` begin that name a mounted folder."""
_CLOSED = {"extra": "forbid"}
"""For pydantic: a key that is not known makes a record unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A node that has the mesh key and the pinned host keys of the others."""

    __pydantic_config__: ClassVar = _CLOSED
    name: str
    gpus: int = 0
    interface: str = ""
    made_after: tuple[str, ...] = ()
    """Runs that began before it took the place of a node of its name: what that one held of them is lost."""

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

    __pydantic_config__: ClassVar = _CLOSED
    id: str
    project: str = ""
    """The folder of the project that it was made for."""
    size: int = 0
    """How many nodes the cluster should have."""
    version: str = ""
    """Of its nodes' program (node/program.py), as they said when they joined."""
    nodes: tuple[MemberRecord, ...] = ()
    runs: tuple[str, ...] = ()
    """The runs that were started from this machine, the newest last."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it was made with, by key, as `lifecycle/changed_settings.py` compares it."""

    @property
    def mounts(self) -> Mapping[str, str]:
        """The sources of the data sets that are folders, mounted into its nodes, by name."""
        return {key.removeprefix(MOUNTS): source for key, source in self.settings.items() if key.startswith(MOUNTS)}

    def has_joined(self, name: str) -> bool:
        """Whether the node of this name has the mesh key; true of every node if no node is recorded."""
        return not self.nodes or any(node.name == name for node in self.nodes)

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
