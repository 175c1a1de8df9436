"""What a cluster is: its nodes, its labels, what a provider plans for it, and what it could not delete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import NodeError
from hvdcloud.json_values import whole_number
from hvdcloud.runs.reports import instant
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.config.data import DataConfig
    from hvdcloud.runs.retry import Within

SSH_PORT = 2222
"""Where the container's own sshd answers (docs: the node contract)."""

LABEL_MANAGED_BY = "managed-by"
LABEL_CLUSTER = "hvdcloud-cluster"
LABEL_OWNER = "hvdcloud-owner"
LABEL_ID = "hvdcloud-id"
LABEL_NODES = "hvdcloud-nodes"
LABEL_NODE = "hvdcloud-node"
LABEL_CREATED = "hvdcloud-created"
MANAGED_BY = "hvdcloud"


class NodeState(str, Enum):
    """What a node's machine does, as its provider sees it."""

    STARTING = "starting"
    RUNNING = "running"
    FROZEN = "frozen"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """What a provider needs to know to make a cluster."""

    name: str
    id: str
    """Six hexadecimal digits, new for every `up`: distinguishes clusters of the same name."""
    owner: str
    nodes: int
    image: str
    """Reference of the image that the nodes run."""
    bucket: str
    """`gs://…` or `file:///…`, as the laptop sees it."""
    authorized_key: str
    """The public key that may log in, in OpenSSH's one-line form."""
    created: datetime
    data: Mapping[str, DataConfig] = field(default_factory=dict)
    """The data sets of its runs, by name, as far as they are known when it is made: folders are mounted then."""
    within: Within | None = None
    """What earlier attempts of a run have left of its limits; None: there were none."""
    wait: float = 0.0
    """Seconds for which a request that the provider queues may wait for room; 0: as long as it does by itself."""

    @property
    def labels(self) -> dict[str, str]:
        """On every object that belongs to the cluster."""
        return {
            LABEL_MANAGED_BY: MANAGED_BY,
            LABEL_CLUSTER: self.name,
            LABEL_OWNER: self.owner,
            LABEL_ID: self.id,
            LABEL_NODES: str(self.nodes),
            LABEL_CREATED: str(int(self.created.timestamp())),
        }

    def node_name(self, index: int) -> str:
        """`NAME-0` is the head."""
        return f"{self.name}-{index}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One host whose container runs sshd and takes ranks."""

    name: str
    index: int
    id: str
    """The provider's own name for the machine."""
    state: NodeState
    address: str | None = None
    """Where the laptop reaches the container's sshd."""
    port: int = SSH_PORT
    host_key: str | None = None
    """The container's public host key, from where only it and the provider can write; known once ready."""
    internal_address: str | None = None
    """Where the other nodes reach it; None: its name is enough."""
    internal_port: int = SSH_PORT
    """Where its sshd answers the other nodes."""
    host: str = ""
    """The machine of the user's that it is on; empty where its provider makes the machine."""
    proxy_command: str | None = None
    """A program whose standard input and output are the connection to its sshd, where no address leads there."""


class ObjectKind(str, Enum):
    """What carries a cluster's labels beside its nodes."""

    DISK = "disk"
    FIREWALL = "firewall"
    GROUP = "group"
    """Of VMs, which makes them all at once."""
    NETWORK = "network"
    OPERATION = "operation"
    """One that still makes something."""
    PLACEMENT = "placement"
    REQUEST = "request"
    """One that waits for room, and makes nodes then."""
    TEMPLATE = "template"
    VOLUME = "volume"

    @property
    def harmless(self) -> bool:
        """Holds nothing and costs nothing."""
        return self in (
            ObjectKind.FIREWALL,
            ObjectKind.GROUP,
            ObjectKind.NETWORK,
            ObjectKind.PLACEMENT,
            ObjectKind.TEMPLATE,
        )


class ClusterObject(str):
    """`network hvdcloud-digits`: how people and `--json` see an object, with its kind."""

    __slots__ = ("kind", "name")
    kind: ObjectKind
    name: str

    def __new__(cls, kind: ObjectKind, name: str) -> ClusterObject:
        made = super().__new__(cls, f"{kind.value} {name}")
        made.kind, made.name = kind, name
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What the labels say about one cluster."""

    name: str
    id: str
    owner: str
    provider: str
    created: datetime
    expected_nodes: int
    nodes: tuple[Node, ...]
    image: str
    bucket: str
    other_objects: tuple[ClusterObject, ...] = ()
    """What else carries the labels, such as a network: `network hvdcloud-digits`."""
    dollars_per_hour: float | None = 0.0
    """What it costs now, by the price table: nodes that run, and the disks of those that do not; None: the price of a
    machine of it is not known."""
    dollars_so_far: float | None = 0.0
    """What the objects that exist have cost; None: as above."""
    paid_until: datetime | None = None
    """Until this moment nothing comes to what it has cost so far, where there is a least time that is billed."""
    worst_case_dollars: float | None = None
    """If every node lives until its provider deletes it; None: nothing ends it, or as above."""
    ends: datetime | None = None
    """When the provider itself begins to delete the last of it; None: never."""
    costs_since: datetime | None = None
    """When the first of its existing nodes began to be billed."""
    cost_notes: tuple[str, ...] = ()
    """What to know about these figures, such as why nothing ends it."""
    unseen: tuple[str, ...] = ()
    """Places that did not answer and may hold more of it: `zone us-central1-f`."""

    @property
    def endless(self) -> bool:
        """Something of it exists until a person deletes it."""
        return self.worst_case_dollars is None and self.ends is None

    @property
    def whole(self) -> bool:
        """Every node that was asked for runs, and no other exists."""
        # Compared without a list of them all: a label may name any number.
        return (
            self.has_all_nodes
            and len(self.nodes) == self.expected_nodes
            and all(node.state is NodeState.RUNNING for node in self.nodes)
        )

    @property
    def has_all_nodes(self) -> bool:
        """Every node that was asked for exists, in whatever state."""
        return len({node.index for node in self.nodes if node.index < self.expected_nodes}) == self.expected_nodes

    @property
    def has_stopped(self) -> bool:
        """Every node that was asked for exists, and has stopped: nodes end themselves when a run is done."""
        return len(self.nodes) == self.expected_nodes and {node.state for node in self.nodes} == {NodeState.STOPPED}

    @property
    def is_remnant(self) -> bool:
        """Its nodes are gone, and only what holds nothing and costs nothing is left."""
        return not self.nodes and not self.unseen and all(each.kind.harmless for each in self.other_objects)

    @property
    def head(self) -> Node | None:
        """Node 0, where the supervisor of a run runs, if it exists."""
        return next((node for node in self.nodes if node.index == 0), None)

    @property
    def is_headless(self) -> bool:
        """Its head is gone or has stopped: only the bucket knows of its runs."""
        return self.head is None or self.head.state is NodeState.STOPPED


def not_whole(cluster: Cluster) -> NodeError:
    """The error for a command that needs every node."""
    name = cluster.name
    again = f"hvdcloud pull --name {name}, then hvdcloud down --name {name} and up again"
    stopped = bool(cluster.nodes) and all(node.state is NodeState.STOPPED for node in cluster.nodes)
    if stopped or not (cluster.nodes or cluster.unseen):
        return NodeError(
            f"all nodes of cluster {name} {'have stopped' if stopped else 'are gone'}: nodes end themselves after a "
            "run with --down-when-done, after limits.idle without a run and without an SSH session, and after "
            "limits.max_run_duration",
            hint=again,
        )
    states = ", ".join(f"{node.name} {node.state.value}" for node in cluster.nodes) or "none"
    if cluster.head is not None and cluster.head.state is NodeState.RUNNING:
        again = f"hvdcloud resize {cluster.expected_nodes} --name {name} brings the others back; else {again}"
    found = f"{counted(cluster.expected_nodes, 'node')} expected, found {states}"
    return NodeError(f"cluster {name} is not whole: {found}", hint=again)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call that would change the outside, exactly as it would be sent."""

    object: str
    """`network hvdcloud-digits`, `container digits-0`."""
    method: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `create` would send; made without side effects."""

    spec: ClusterSpec
    requests: tuple[Request, ...]
    dollars_per_hour: float | None
    """For all nodes together, by the price table; None: it does not know them."""
    worst_case_dollars: float | None = 0.0
    """If the nodes live as long as they may, wherever they may be made: never less than what they will have cost.
    None: not known."""
    seconds: float | None = None
    """After which the provider itself deletes the nodes; None: never."""
    notices: tuple[str, ...] = ()
    """What the user should know before money is spent, such as a GPU that is about to be switched off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """Something that `destroy` could not prove gone."""

    object: str
    reason: str
    delete_with: str
    """A command that deletes it by hand."""


def created_by(labels: Mapping[str, str]) -> datetime:
    """When a cluster was made, as its labels say; the epoch where they name no time that a calendar knows."""
    return datetime.fromtimestamp(instant(whole_number(labels.get(LABEL_CREATED))) or 0.0, tz=timezone.utc)


def leftover_table(left: Iterable[Leftover]) -> str:
    """A line for each object: why it is left, and what deletes it."""
    return "\n".join(f"{each.object}: {each.reason}; {each.delete_with}" for each in left)
