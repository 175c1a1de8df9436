"""The protocol of providers, which make nodes.

Labels are the truth: `list`, `nodes` and `destroy` work from labels alone, from any machine, with no state. Every verb
may be repeated. A provider never prints and never reads the configuration file. One contract test suite
(tests/contract/test_provider.py) runs against every provider.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hvdcloud.errors import HvdcloudError, TeardownError, UsageError

if TYPE_CHECKING:
    from hvdcloud.cluster.journal import Journal
    from hvdcloud.cluster.model import Cluster, ClusterSpec, Leftover, Node, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Every cluster that could be seen."""

    clusters: tuple[Cluster, ...]
    unseen: tuple[str, ...] = ()
    """Places that did not answer and may hold more: `zone us-central1-f`."""

    def unseen_error(self) -> UnseenError:
        """The places that did not answer, as an error."""
        return UnseenError(
            f"{', '.join(self.unseen)} did not answer; more clusters may be there and STILL COST MONEY",
            hint="run the command again in a minute; https://status.cloud.google.com says what is down",
        )


class UnseenError(TeardownError):
    """Nothing was found, but not every place answered: this is no proof that nothing is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a spec cannot become a cluster, and what to do about it."""

    message: str
    hint: str
    error: type[HvdcloudError] = UsageError
    """What kind of failure it is, which decides the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProgress:
    """One step of one node on its way to ready, or of one object on its way out."""

    object: str
    step: str


OnProgress = Callable[[NodeProgress], None]


def ignore_progress(_: NodeProgress) -> None:
    """For callers that do not show progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBucket:
    """How the nodes see what the laptop sees under another name."""

    bucket: str
    bucket_endpoint: str | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)


class Provider(Protocol):
    """Who makes nodes. Errors are those of `hvdcloud.errors`; each names the object, the cause and a remedy."""

    name: str
    ready_seconds: float
    """How long nodes may take from `create` to ready."""

    def preflight(self, spec: ClusterSpec) -> Sequence[Problem]:
        """What stands in the way of `spec`, found without changing anything. An empty list means go."""

    def plan(self, spec: ClusterSpec) -> Plan:
        """The exact requests for `spec`; nothing is changed by making them."""

    def create(self, plan: Plan, *, journal: Journal, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """Make all nodes or none.

        The journal hears of every object before the call that makes it. On any failure, Ctrl-C included, what this
        call made is deleted again before the exception goes on; what others made under the same name is not touched.

        Raises:
            UsageError: a name is taken.  CapacityError: no room.  ImageError: the image is not there.
            NodeError: a node was made but does not start.
        """

    def wait_ready(
        self, nodes: Sequence[Node], *, deadline: float, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Wait until every node's sshd answers; returns the nodes with address and host key.

        Args:
            deadline: `time.monotonic()` value after which to give up.

        Raises:
            NodeError: a node failed or the deadline passed; details hold the end of its boot log.
        """

    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        """What `grow` would send, and what the whole cluster would cost then; nothing is changed by asking.

        Raises:
            UsageError: the settings or `limits.max_cost` do not allow it, or the cluster's time is nearly over.
        """

    def grow(
        self,
        spec: ClusterSpec,
        indices: Sequence[int],
        *,
        journal: Journal,
        on_progress: OnProgress = ignore_progress,
    ) -> Sequence[Node]:
        """Make these nodes of a cluster that is there, all of them or none, beside those that it has.

        What stands stopped under one of their names is deleted first. They live no longer than the others. As with
        `create`, the journal hears of them first, and after a failure or Ctrl-C nothing that this call made is left.

        Args:
            spec: the cluster's own name, id and so on; `nodes`: how many it will have.

        Raises:
            As `create` and `plan_growth`; UsageError also: there is a node of this name, and it is not stopped.
            TeardownError: what stood stopped could not be deleted.
        """

    def shrink(
        self, name: str, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Leftover]:
        """Delete these nodes and nothing else, also such as are only being made. Gone already is success.

        Returns:
            what could not be proven gone.
        """

    def vm_templates(self, spec: ClusterSpec, cluster: Cluster, indices: Sequence[int]) -> Mapping[str, Any] | None:
        """What the head needs to make these nodes anew by itself (node/elastic/replace.py). Holds no secret.

        Returns:
            None: here it cannot, or nothing ends the cluster.
        """

    def host_keys(self, nodes: Sequence[Node]) -> Mapping[str, str]:
        """By name the host keys of those that say they are ready; from where only they and the provider can write."""

    def set_size(self, name: str, nodes: int) -> None:
        """Have the labels of what is there say how many nodes the cluster has, where labels can be changed.

        Raises:
            NodeError, CredentialsError: they could not be changed.
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
        """Every cluster of this project or engine, whoever made it."""

    def console(self, node: Node) -> str:
        """The node's boot log."""

    def bucket_as_seen_by_nodes(self, *, bucket: str, bucket_endpoint: str | None) -> NodeBucket:
        """How nodes reach a bucket that the laptop knows as `bucket`. Pure."""
