"""What providers have in common whose nodes are containers on Docker engines, be it one engine or several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import Cluster, ClusterSpec, Leftover, Node, NodeState, Plan
from hvdcloud.errors import TeardownError
from hvdcloud.providers.base import NodeProgress, OnProgress, ignore_progress
from hvdcloud.providers.engine.gpu_lock import TakenError

if TYPE_CHECKING:
    from hvdcloud.cluster.journal import Journal

ATTEMPTS = 5
"""How often GPUs and ports are chosen while others take them away."""


class EngineProvider(ABC):
    """Creates and grows clusters of containers."""

    def create(self, plan: Plan, *, journal: Journal, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """Make all that the plan asks for, or nothing.

        Where another cluster takes the same GPUs or ports at the same moment, others are chosen, if there are any.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return self._create_once(plan, journal=journal, on_progress=on_progress)
            except TakenError as taken:
                if taken.details:  # Something that this try made could not be deleted.
                    raise
                on_progress(NodeProgress(object=plan.spec.name, step=f"{taken.message}; looking for others"))
                plan = self._with_what_is_free(plan)
        return self._create_once(plan, journal=journal, on_progress=on_progress)

    def grow(
        self, spec: ClusterSpec, indices: Sequence[int], *, journal: Journal, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Stopped containers of the same names are deleted first, then all containers at once."""
        cluster = self.cluster(spec.name)
        stopped = [node.index for node in cluster.nodes if node.state is NodeState.STOPPED] if cluster else []
        if left := self.shrink(spec.name, sorted({*stopped} & {*indices}), on_progress=on_progress):
            raise TeardownError(f"{left[0].object} is in the way: {left[0].reason}", hint=left[0].delete_with)
        return self.create(self.plan_growth(spec, indices), journal=journal, on_progress=on_progress)

    def spare_places(self, cluster: Cluster) -> int:
        """None: all nodes are on one engine."""
        return 0

    def vm_templates(self, spec: ClusterSpec, cluster: Cluster, indices: Sequence[int]) -> None:  # noqa: B027 - the same
        """A container cannot make others."""

    def set_size(self, name: str, nodes: int) -> None:  # noqa: B027 - nothing to do for any of them
        """Labels cannot be changed here: the newest container's count, and what its machine remembers."""

    @abstractmethod
    def cluster(self, name: str) -> Cluster | None:
        """As `Provider.cluster`."""

    @abstractmethod
    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        """As `Provider.plan_growth`."""

    @abstractmethod
    def shrink(
        self, name: str, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Leftover]:
        """As `Provider.shrink`."""

    @abstractmethod
    def _create_once(self, plan: Plan, *, journal: Journal, on_progress: OnProgress) -> Sequence[Node]:
        """Make all or nothing. Raises TakenError: another cluster was faster."""

    @abstractmethod
    def _with_what_is_free(self, planned: Plan) -> Plan:
        """The plan with GPUs and ports that are free now."""
