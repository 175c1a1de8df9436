"""The protocol of providers, which make nodes.

Labels are the truth: `list`, `nodes` and `destroy` work from labels alone, from any machine, with no state. Every verb
may be repeated. A provider never prints and never reads the configuration file. One contract test suite
(tests/contract/test_provider.py) runs against every provider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from hvdcloud.errors import CapacityError, TeardownError

if TYPE_CHECKING:
    from hvdcloud.checks import Check, Finding
    from hvdcloud.cluster.model import Cluster, ClusterSpec, Leftover, Node, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Every cluster that could be seen."""

    clusters: tuple[Cluster, ...]
    unseen: tuple[str, ...] = ()
    """Places that did not answer and may hold more: `zone us-central1-f`."""
    cost: str = " and STILL COST MONEY"
    """What else is to be said of clusters there; empty: they cost nothing."""
    hint: str = "run the command again in a minute; https://status.cloud.google.com shows what is down"
    """What to do about places that did not answer."""

    def unseen_error(self) -> UnseenError:
        """The places that did not answer, as an error."""
        return UnseenError(
            f"{', '.join(self.unseen)} did not answer; more clusters may be there{self.cost}", hint=self.hint
        )


class NoRoomError(CapacityError):
    """No place has room for the nodes now; nothing of them is left."""

    def __init__(self, message: str, *, hint: str, zones: int, details: str = "") -> None:
        super().__init__(message, hint=hint, details=details)
        self.zones = zones  # How many were tried.


class UnseenError(TeardownError):
    """Nothing was found, but not every place answered: this does not prove that nothing exists."""


class Stage(Enum):
    """How far a node or an object is."""

    WORKING = "working"
    DONE = "done"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgress:
    """One step of creating a node or of deleting an object."""

    object: str
    step: str
    """For people, without how far it is."""
    stage: Stage = Stage.WORKING
    percent: int | None = None
    """How much of it is done; None: not known."""


OnProgress = Callable[[NodeProgress], None]


def ignore_progress(_: NodeProgress) -> None:
    """For callers that do not show progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBucket:
    """How the nodes see what the laptop sees under another name."""

    bucket: str
    per_node: bool = False
    """Each node has one of its own, and what is in it has to be brought to the laptop's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What an image has to have code for."""

    name: str
    compute_capability: str


class Platform(Protocol):
    """What a kind of provider says of one configuration. Nothing is connected; only `connect` asks."""

    place: str
    """Where the nodes are, in words: `on this machine`."""
    costs_money: bool
    processor: str | None
    """The nodes', as in wheel names; None: this machine's."""

    @property
    def needs_registry(self) -> bool:
        """Nodes pull their image from a registry; False: they run that of this machine's engine."""

    @property
    def unpacks_zstd(self) -> bool:
        """Every engine that will pull the image is known to unpack layers packed with zstd."""

    def connect(self, *, on_retry: Callable[[str], None]) -> Provider:
        """The provider, ready to use.

        Args:
            on_retry: called with a line for people when a request is about to be sent again; from any thread.

        Raises:
            NodeError: it does not answer (for local: no Docker engine runs).
            CredentialsError: there are no credentials for it.
        """

    def checks(self, spec: ClusterSpec) -> Sequence[Check]:
        """What is checked before this provider makes `spec`; nothing is asked yet."""

    def gpu(self) -> Gpu | None:
        """The GPU of the nodes; None: they have none, or a check will say what is wrong."""

    def machines(self) -> str | None:
        """What the nodes are, in words; None: they are not separate machines."""

    def device_mismatch(self) -> Finding | None:
        """GPUs that are paid for and that the image does not use, or GPUs that the image needs and nodes lack.

        A failure where nodes cannot be made like that, else a warning.
        """


class Provider(Protocol):
    """Makes nodes. Errors are those of `hvdcloud.errors`; each names the object, the cause and a remedy."""

    name: str
    ready_seconds: float
    """How long nodes may take from `create` to ready."""

    def plan(self, spec: ClusterSpec) -> Plan:
        """The exact requests for `spec`; nothing is changed by making them."""

    def create(self, plan: Plan, *, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """Make all nodes or none.

        After any failure, Ctrl-C included, what this call made is deleted before it raises; what others made under the
        same name is not touched.

        Raises:
            NameTakenError: a node's.  CapacityError: no room.  ImageError: the image is missing.
            NodeError: a node was made but does not start.
        """

    def wait_ready(
        self, nodes: Sequence[Node], *, deadline: float, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Wait until every node's sshd answers; returns the nodes with address and host key.

        Args:
            deadline: of time.monotonic(): when to give up.

        Raises:
            NodeError: a node failed or the deadline passed; details hold the end of its boot log.
        """

    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        """What `grow` would send, and what the whole cluster would cost then; nothing is changed by asking.

        Raises:
            UsageError: the settings or `limits.max_cost` do not allow it, or the cluster's time is nearly over.
        """

    def grow(
        self, spec: ClusterSpec, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Make more nodes of a cluster that exists, all of them or none.

        A stopped node of one of their names is deleted first. They live no longer than the others. As with
        `create`, after a failure or Ctrl-C nothing that this call made is left.

        Args:
            spec: the cluster's own name, id and so on; `nodes`: how many it will have.

        Raises:
            As `create` and `plan_growth`; NameTakenError also: a node of this name is not stopped.
            TeardownError: a stopped one could not be deleted.
        """

    def shrink(
        self, name: str, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Leftover]:
        """Delete these nodes, also such as are being made; returns what is not proven gone. Gone already is success."""

    def revive(self, nodes: Sequence[Node], *, deadline: float) -> Sequence[Node]:
        """Start stopped nodes again, with all that they hold, and wait until they are ready.

        Args:
            deadline: as for `wait_ready`.

        Returns:
            those that are ready, with address and host key; none where the provider cannot start them again.

        Raises:
            NodeError: one does not start.
        """
        return []

    def set_size(self, name: str, nodes: int) -> None:
        """Write into the labels, where they can be changed, how many nodes the cluster has.

        Raises NodeError or CredentialsError: they could not be changed.
        """

    def cluster(self, name: str) -> Cluster | None:
        """The cluster of this name as its labels describe it; None if it is proven that no object carries them.

        Raises:
            UnseenError: none was found, but not every place answered.
        """

    def destroy(self, name: str, *, on_progress: OnProgress = ignore_progress) -> Sequence[Leftover]:
        """Delete everything that carries the cluster's labels. Gone already is success.

        Returns:
            what could not be proven gone; an empty list means that listing again found nothing.
        """

    def list(self) -> Listing:
        """Every cluster of this project or engine, of any user."""

    def close(self) -> None:
        """End its connections, where it has any that last."""
        return

    def bucket_as_seen_by_nodes(self, bucket: str) -> NodeBucket:
        """How nodes reach a bucket that the laptop knows as `bucket`. Pure."""
