"""What providers have in common whose nodes are containers on Docker engines, be it one engine or several."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import ClusterSpec, Leftover, Node, NodeState
from hvdcloud.errors import TeardownError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import NodeProgress, OnProgress, Provider, Stage, ignore_progress

if TYPE_CHECKING:
    from hvdcloud.config.model import Config
    from hvdcloud.providers.engine.nodes import EngineNodes


class EnginePlatform:
    """The part of a `Platform` that does not depend on where the engines are; nodes there cost nothing."""

    costs_money = False
    processor: str | None = None
    unpacks_zstd = False

    def __init__(self, config: Config) -> None:
        self._config = config


class EngineProvider(Provider):
    """Follows and grows clusters of containers."""

    def grow(
        self, spec: ClusterSpec, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Stopped containers of the same names are deleted first, then all containers at once."""
        cluster = self.cluster(spec.name)
        stopped = [node.index for node in cluster.nodes if node.state is NodeState.STOPPED] if cluster else []
        if left := self.shrink(spec.name, sorted({*stopped} & {*indices}), on_progress=on_progress):
            raise TeardownError(f"{left[0].object} is in the way: {left[0].reason}", hint=left[0].delete_with)
        return self.create(self.plan_growth(spec, indices), on_progress=on_progress)

    def wait_ready(
        self, nodes: Sequence[Node], *, deadline: float, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Read every container's output until its node program says that sshd answers."""
        return self._until_ready(
            nodes, lambda engine, node, given_up: engine.until_ready(node, deadline, given_up), on_progress
        )

    def revive(self, nodes: Sequence[Node], *, deadline: float) -> Sequence[Node]:
        """Containers that have ended are kept, with all that they hold: they start again."""
        return self._until_ready(
            nodes, lambda engine, node, given_up: engine.start_again(node, deadline, given_up), ignore_progress
        )

    def _until_ready(
        self, nodes: Sequence[Node], wait: Callable[[EngineNodes, Node, threading.Event], str], on_progress: OnProgress
    ) -> Sequence[Node]:
        """The nodes with address and host key, which `wait` returns."""
        given_up = threading.Event()

        def wait_for(node: Node) -> Node:
            ready = self._with_address(node, wait(self._engine_of(node), node, given_up))
            on_progress(NodeProgress(object=node.name, step="ready", stage=Stage.DONE))
            return ready

        return side_by_side(wait_for, nodes, on_abort=given_up.set)

    def destroy(self, name: str, *, on_progress: OnProgress = ignore_progress) -> Sequence[Leftover]:
        """All of it, listed again until nothing is found or a minute is over."""
        return self._destroy(name, None, on_progress=on_progress)

    def shrink(
        self, name: str, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Leftover]:
        """Delete their containers, and look for them again until nothing is found."""
        return self._destroy(name, {*indices}, on_progress=on_progress) if indices else []

    def set_size(self, name: str, nodes: int) -> None:
        """Labels cannot be changed here: the newest container's count, and what its machine remembers."""

    @abstractmethod
    def _destroy(self, name: str, indices: set[int] | None, *, on_progress: OnProgress) -> Sequence[Leftover]:
        """Delete these nodes, or with None all of the cluster; returns what is not proven gone."""

    @abstractmethod
    def _engine_of(self, node: Node) -> EngineNodes:
        """The engine that has the node's container."""

    @abstractmethod
    def _with_address(self, node: Node, host_key: str) -> Node:
        """A node that is ready, with its host key and, where the engine has chosen one, its address."""
