"""A cluster's containers on one Docker engine: found by their labels, followed until they are ready, deleted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from hvdcloud.cluster.model import (
    LABEL_CLUSTER,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    ClusterObject,
    Leftover,
    Node,
    ObjectKind,
)
from hvdcloud.errors import CapacityError, NodeError
from hvdcloud.json_values import parse_object
from hvdcloud.node.mesh.host_key import is_host_key
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import NodeProgress, OnProgress, Stage
from hvdcloud.providers.engine import view
from hvdcloud.providers.engine.containers import delete
from hvdcloud.providers.engine.gpus import claim
from hvdcloud.providers.engine.view import EngineObjects
from hvdcloud.visible import log_of

DESTROY_SECONDS = 60.0
_POLL_SECONDS = 0.25
STATUS_PREFIX = "hvdcloud-status "
OURS = f"{LABEL_MANAGED_BY}={MANAGED_BY}"


class EngineNodes:
    """Nodes on one engine; `api` is docker-py's, used from several threads at once.

    Args:
        by_hand: what a user types to run a command on the engine's machine.
    """

    def __init__(self, api: Any, *, by_hand: Callable[[str], str] = str) -> None:
        self._api = api
        self._by_hand = by_hand

    def objects(self, *labels: str) -> EngineObjects:
        """What is ours on the engine, or what has these labels too."""
        ours = {"label": [*labels, OURS]}
        found = [(ObjectKind.NETWORK, network) for network in self._api.networks(filters=ours)]
        found += [(ObjectKind.VOLUME, volume) for volume in self._api.volumes(filters=ours).get("Volumes") or []]
        return EngineObjects(
            containers=tuple(self._api.containers(all=True, filters=ours)),
            others=tuple((ClusterObject(kind, each["Name"]), each["Labels"]) for kind, each in found),
        )

    def start_again(self, node: Node, deadline: float, given_up: threading.Event) -> str:
        """Start a stopped container, and wait as `until_ready` does.

        Raises:
            NodeError: it does not start, as where another program has its port or its GPU is gone.
            CapacityError: another cluster has its GPUs now.
        """
        from docker.errors import APIError

        try:
            before = len(self._output(node))
            self._api.start(node.id)
            try:
                claim(self._api, [node.id])
            except CapacityError:
                self._api.kill(node.id)
                raise
        except APIError as error:
            raise NodeError(
                f"node {node.name} does not start again: {error.explanation}",
                hint=f"{self._by_hand(f'docker start {node.name}')} says the same; fix that first",
            ) from error
        return self.until_ready(node, deadline, given_up, after=before)

    def _output(self, node: Node) -> bytes:
        return bytes(self._api.logs(node.id, stdout=True, stderr=True))

    def until_ready(self, node: Node, deadline: float, given_up: threading.Event, *, after: int = 0) -> str:
        """Read a container's output until its node program says that sshd answers; returns the node's host key.

        Args:
            deadline: of time.monotonic(): when to give up.
            given_up: set where another node has failed.
            after: bytes of its output that are of an earlier start.

        Raises:
            NodeError: it stopped, or the deadline passed.
        """
        from docker.errors import APIError

        while True:
            late = time.monotonic() >= deadline
            try:
                runs = self._api.inspect_container(node.id)["State"]["Running"]
                output = self._output(node)[after:]
            except APIError as error:
                raise NodeError(f"node {node.name} is gone: {error.explanation}", hint="hvdcloud up") from error
            said: list[str] = []
            for line in output.decode(errors="replace").split("\n"):
                status = _status(line.rstrip("\r"))
                if status is None:
                    said.append(line.rstrip("\r"))
                elif status.get("status") == "ready":
                    return str(status["host_key"])
                elif status.get("status") == "failed":
                    said.append(f"{status.get('step')}: {status.get('error')}")
            if late or not runs or given_up.wait(_POLL_SECONDS):
                break
        raise NodeError(
            f"node {node.name} {'did not come up in time' if late else 'stopped while coming up'}",
            hint=f"{self._by_hand(f'docker logs {node.name}')} shows all of it; hvdcloud up tries again",
            details=log_of(f"node {node.name}", "\n".join(said[-20:]).strip()),
        )

    def destroy(
        self, name: str, *, on_progress: OnProgress, indices: Collection[int] | None = None
    ) -> Sequence[Leftover]:
        """Delete all of a cluster, or these nodes only; listed again until nothing is found or a minute is over.

        Containers go at once, then networks and volumes. Returns what is not proven gone.
        """
        from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

        # An object that the engine is still deleting answers 409 and is gone a moment later.
        until_gone = Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(DESTROY_SECONDS),
            wait=wait_exponential(multiplier=0.001, max=2),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else [],
        )
        return until_gone(self._destroy_once, name, on_progress, indices)

    def _destroy_once(self, name: str, on_progress: OnProgress, indices: Collection[int] | None) -> Sequence[Leftover]:
        """Delete all, or these nodes only; what was found, deleted or not, has to be looked for once more."""
        labels = {"label": [f"{LABEL_CLUSTER}={name}", OURS]}
        containers = [
            ("container", found["Names"][0].removeprefix("/"), found["Id"])
            for found in self._api.containers(all=True, filters=labels)
            if indices is None or view.index_of(found) in indices
        ]
        others: list[tuple[str, str, str]] = []
        if indices is None:
            others += [("network", found["Name"], found["Id"]) for found in self._api.networks(filters=labels)]
            volumes = self._api.volumes(filters=labels).get("Volumes") or []
            others += [("volume", volume["Name"], volume["Name"]) for volume in volumes]

        def remove(found: tuple[str, str, str]) -> Leftover:
            kind, object_name, object_id = found
            by_hand = {"container": "docker rm -f", "network": "docker network rm", "volume": "docker volume rm"}[kind]
            title = f"{kind} {object_name}"
            why = delete(self._api, kind, object_id)
            if not why:
                on_progress(NodeProgress(object=title, step="deleted", stage=Stage.DELETED))
            reason = why or "deleted, but not yet gone"
            return Leftover(object=title, reason=reason, delete_with=self._by_hand(f"{by_hand} {object_name}"))

        # A network can only go when its containers are gone.
        return [*side_by_side(remove, containers), *side_by_side(remove, others)]


def _status(line: str) -> dict[str, Any] | None:
    """What a line of a node's output says of its state; None: it is another line."""
    status = parse_object(line.removeprefix(STATUS_PREFIX)) if line.startswith(STATUS_PREFIX) else None
    # Any process in the container may have written it.
    if status is None or (status.get("status") == "ready" and not is_host_key(status.get("host_key"))):
        return None
    return status if isinstance(status.get("status"), str) else None
