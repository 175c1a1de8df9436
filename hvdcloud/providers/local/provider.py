"""Nodes as containers on this machine's Docker engine, on a network of their own.

Every container publishes its sshd on a loopback port that the engine picks. Between nodes, Docker's DNS resolves node
names.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import (
    LABEL_CLUSTER,
    SSH_PORT,
    Cluster,
    ClusterSpec,
    Leftover,
    Node,
    NodeState,
    Plan,
    Request,
)
from hvdcloud.errors import CapacityError, HvdcloudError, NodeError, UsageError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import Listing, NodeBucket, OnProgress, ignore_progress
from hvdcloud.providers.engine import view
from hvdcloud.providers.engine.containers import Maker
from hvdcloud.providers.engine.gpus import assign_gpus
from hvdcloud.providers.engine.nodes import EngineNodes
from hvdcloud.providers.engine.provider import EngineProvider
from hvdcloud.providers.engine.requests import BUCKET_IN_NODE, with_gpus
from hvdcloud.providers.local import requests as plan_of

if TYPE_CHECKING:
    from docker import DockerClient

    from hvdcloud.providers.engine.gpus import Wish


class LocalProvider(EngineProvider):
    """Containers on one Docker engine; the API of docker-py's `client` is used from several threads at once."""

    name = "local"
    ready_seconds = 180.0

    def __init__(
        self, client: DockerClient, *, limits: Mapping[str, str] = MappingProxyType({}), gpus: Wish | None = None
    ) -> None:
        """Nothing is asked yet.

        Args:
            limits: when the nodes end themselves, by `limits` of engine/requests.py.
            gpus: what the nodes get of this machine's; None: they get none.
        """
        self._client = client
        self._api = client.api
        self._nodes = EngineNodes(client.api)
        self._limits = limits
        self._gpus = gpus

    def plan(self, spec: ClusterSpec) -> Plan:
        """One network and a container for each node. Running them costs nothing.

        Raises:
            UsageError, CapacityError, NodeError: they cannot have the GPUs that they should.
        """
        requests = plan_of.network_request(spec), *self._containers(spec, range(spec.nodes))
        return Plan(spec=spec, requests=requests, dollars_per_hour=0.0)

    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        """More containers of the same network and with the same folder. Running them costs nothing."""
        return Plan(spec=spec, requests=tuple(self._containers(spec, indices)), dollars_per_hour=0.0)

    def _containers(self, spec: ClusterSpec, indices: Sequence[int]) -> Sequence[Request]:
        """With the GPUs that these nodes get as things are now."""
        from hvdcloud.providers.local.gpus import PLACE, ask_this_machine

        requests = plan_of.container_requests(spec, indices, limits=self._limits)
        if self._gpus is None:
            return requests
        facts = ask_this_machine()
        found = assign_gpus(
            self._api,
            facts.found_gpus(PLACE),
            self._gpus,
            hook=facts.hook,
            nodes=spec.nodes,
            indices=indices,
            place=PLACE,
        )
        return [with_gpus(request, share) for request, share in zip(requests, found, strict=True)]

    def bucket_as_seen_by_nodes(self, bucket: str) -> NodeBucket:
        """The folder is mounted into the node."""
        return NodeBucket(bucket=f"file://{BUCKET_IN_NODE}")

    def create(self, plan: Plan, *, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """Network first, then all containers at once."""
        spec = plan.spec
        maker = Maker(self._api, on_progress=on_progress)
        containers = [request for request in plan.requests if "HostConfig" in request.body]
        networks = [request for request in plan.requests if request not in containers]
        try:
            for host in (request.body["HostConfig"] for request in containers):
                folders = [bind.partition(":")[0] for bind in host["Binds"]]
                for folder in folders:
                    _make_folder(Path(folder))
                for folder in (*folders, *(mount["Source"] for mount in host["Mounts"])):
                    _refuse_link(folder)
            # In a thread: Ctrl-C must not leave us without the answer to a request that the engine carries out.
            side_by_side(maker.network, networks)
            side_by_side(maker.create, containers)
            maker.start()
        except BaseException as error:
            # Only what this call made: a cluster of the same name that another user made meanwhile stays.
            left = maker.undo()
            if isinstance(error, HvdcloudError):
                error.add_details(*left)
            raise
        cluster = self.cluster(spec.name)
        return [node for node in cluster.nodes if node.id in maker.ids] if cluster else []

    def _engine_of(self, node: Node) -> EngineNodes:
        return self._nodes

    def _with_address(self, node: Node, host_key: str) -> Node:
        ports = self._api.inspect_container(node.id)["NetworkSettings"]["Ports"] or {}
        bindings = ports.get(f"{SSH_PORT}/tcp")
        if not bindings:
            hint = f"docker logs {node.name} shows all of it; hvdcloud up tries again"
            raise NodeError(f"node {node.name} stopped while coming up", hint=hint)
        port = int(bindings[0]["HostPort"])
        return replace(node, state=NodeState.RUNNING, address="127.0.0.1", port=port, host_key=host_key)

    def close(self) -> None:
        """End the connections to the engine."""
        self._client.close()

    def cluster(self, name: str) -> Cluster | None:
        """From the labels of containers and networks."""
        return next(iter(self._clusters(f"{LABEL_CLUSTER}={name}")), None)

    def list(self) -> Listing:
        """Every cluster on this engine."""
        return Listing(clusters=tuple(self._clusters()))

    def _clusters(self, *labels: str) -> Sequence[Cluster]:
        objects = self._nodes.objects(*labels)
        return view.describe_clusters(objects, provider=self.name, describe=view.node_of)

    def _destroy(self, name: str, indices: set[int] | None, *, on_progress: OnProgress) -> Sequence[Leftover]:
        return self._nodes.destroy(name, on_progress=on_progress, indices=indices)


def _refuse_link(folder: str) -> None:
    """The engine would follow a link that took the folder's place since its path was looked at."""
    if (real := os.path.realpath(folder)) != folder:
        hint = "ls -ld it: who may write above it has replaced it; remove the link, and try again"
        raise UsageError(f"{folder} has become a link to {real}, and is not mounted", hint=hint)


def _make_folder(path: Path) -> None:
    """The folder to mount: the engine would make a missing one owned by root."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind = CapacityError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
        raise kind(
            f"the bucket's folder {path} cannot be made: {error.strerror}",
            hint="checkpoints.bucket in hvdcloud.yaml, or --bucket, names another one",
        ) from error
