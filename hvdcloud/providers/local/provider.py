"""Nodes as containers on this machine's Docker engine, on a network of their own.

Every container publishes its sshd on a loopback port that the engine picks, so that the laptop reaches it the same way
on Linux and where the engine lives in a virtual machine. Between nodes, Docker's DNS resolves node names.
"""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.cluster.model import (
    LABEL_CLUSTER,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    SSH_PORT,
    Cluster,
    ClusterObject,
    ClusterSpec,
    Leftover,
    Node,
    NodeState,
    ObjectKind,
    Plan,
    Request,
)
from hvdcloud.errors import CapacityError, HvdcloudError, ImageError, NodeError, TeardownError, UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.node.mesh.host_key import is_host_key
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import Listing, NodeBucket, NodeProgress, OnProgress, Problem, Stage, ignore_progress
from hvdcloud.providers.engine.gpu_lock import GpuTakenError, claim_gpus
from hvdcloud.providers.local import requests as plan
from hvdcloud.providers.local import view
from hvdcloud.providers.local.containers import Maker
from hvdcloud.providers.local.requests import NetworkRequest
from hvdcloud.visible import log_of

if TYPE_CHECKING:
    from docker import DockerClient

    from hvdcloud.cluster.journal import Journal
    from hvdcloud.providers.engine.gpus import Device, Wish

GPU_ATTEMPTS = 5
"""How often GPUs are chosen while others take them away."""
DESTROY_SECONDS = 60.0
STATUS_PREFIX = "hvdcloud-status "
OURS = f"{LABEL_MANAGED_BY}={MANAGED_BY}"


class LocalProvider:
    """Containers on one Docker engine; the API of docker-py's `client` is used from several threads at once."""

    name = "local"
    ready_seconds = 180.0

    def __init__(
        self,
        client: DockerClient,
        *,
        idle_seconds: float | None = None,
        gpus: Wish | None = None,
        refusal: Problem | None = None,
    ) -> None:
        """Nothing is asked yet.

        Args:
            idle_seconds: without a run and without an SSH session, after which the nodes end themselves; None: never.
            gpus: what the nodes get of this machine's; None: they get none.
            refusal: why the configuration alone rules nodes out.
        """
        self._api = client.api
        self._idle_seconds = idle_seconds
        self._gpus = gpus
        self._refusal = refusal

    # --- planning -------------------------------------------------------------------------------------------------

    def preflight(self, spec: ClusterSpec) -> Sequence[Problem]:
        """A name that is taken, GPUs that cannot be had, an image that does not exist."""
        problems = [] if self._refusal is None else [self._refusal]
        names = {spec.node_name(index) for index in range(spec.nodes)}
        for container in self._api.containers(all=True):
            for name in names & {name.removeprefix("/") for name in container["Names"]}:
                problems.append(view.name_taken(name, container["Labels"], spec))
        try:
            self._device_requests(spec, range(spec.nodes))
        except HvdcloudError as error:
            problems.append(Problem.of(error))
        if not self._api.images(name=spec.image, quiet=True):
            message = f"image {spec.image} is not on this engine"
            problems.append(Problem(message=message, hint="hvdcloud build", error=ImageError))
        return problems

    def plan(self, spec: ClusterSpec) -> Plan:
        """One network and a container for each node. Running them costs nothing.

        Raises:
            UsageError, CapacityError, NodeError: they cannot have the GPUs that they should.
        """
        return self._with_gpus(plan.make_plan(spec, idle_seconds=self._idle_seconds))

    def _with_gpus(self, planned: Plan) -> Plan:
        """The plan with the GPUs that its nodes get as things are now."""
        indices = [index for request in planned.requests if (index := plan.node_index(request)) is not None]
        found = self._device_requests(planned.spec, indices)
        return replace(
            planned,
            requests=tuple(
                plan.with_gpus(request, *found[index])
                if (index := plan.node_index(request)) is not None and index in found
                else request
                for request in planned.requests
            ),
        )

    def _device_requests(
        self, spec: ClusterSpec, indices: Sequence[int]
    ) -> Mapping[int, tuple[Sequence[Device], Mapping[str, Any]]]:
        from hvdcloud.providers.local.gpus import device_requests

        if self._gpus is None:
            return {}
        return device_requests(self._api, self._gpus, nodes=spec.nodes, indices=indices)

    def bucket_as_seen_by_nodes(self, *, bucket: str, bucket_endpoint: str | None) -> NodeBucket:
        """A folder is mounted into the node; a server on this machine's loopback has another name there."""
        return plan.bucket_as_seen_by_nodes(bucket=bucket, bucket_endpoint=bucket_endpoint)

    # --- creating -------------------------------------------------------------------------------------------------

    def create(self, plan: Plan, *, journal: Journal, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """Network first, then all containers at once.

        Where another cluster takes the same GPUs at the same moment, others are chosen, if there are any.
        """
        for _ in range(GPU_ATTEMPTS - 1):
            try:
                return self._create_once(plan, journal=journal, on_progress=on_progress)
            except GpuTakenError as taken:
                if taken.details:  # Something that this try made could not be deleted.
                    raise
                on_progress(NodeProgress(object=plan.spec.name, step=f"{taken.message}; looking for others"))
                plan = self._with_gpus(plan)
        return self._create_once(plan, journal=journal, on_progress=on_progress)

    def _create_once(self, plan: Plan, *, journal: Journal, on_progress: OnProgress) -> Sequence[Node]:
        spec = plan.spec
        maker = Maker(self._api, on_progress=on_progress)
        networks = [request for request in plan.requests if isinstance(request, NetworkRequest)]
        containers = [request for request in plan.requests if request not in networks]
        try:
            for request in plan.requests:
                for folder in request.body.get("mounts", {}):
                    _make_folder(Path(folder))
            objects = [request.object for request in plan.requests]
            journal.record("create", cluster_id=spec.id, cluster=spec.name, objects=objects)
            # In a thread: Ctrl-C must not leave us without the answer to a request that the engine carries out.
            side_by_side(maker.network, networks)
            made = self._make_containers(maker, containers)
        except BaseException as error:
            # Only what this call made: a cluster of the same name that another user made meanwhile stays.
            left = maker.undo()
            if isinstance(error, HvdcloudError):
                error.add_details(*left)
            raise
        cluster = self.cluster(spec.name)
        return [node for node in cluster.nodes if node.id in made] if cluster else []

    def _make_containers(self, maker: Maker, requests: Sequence[Request]) -> Sequence[str]:
        """Make and start them; returns their ids. Raises GpuTakenError: another cluster has one of their GPUs."""
        if self._gpus is None or self._gpus.share:
            return side_by_side(maker.container, requests)
        made = side_by_side(maker.create, requests)
        ids = [each.id for each in made]
        claim_gpus(self._api, ids)
        side_by_side(maker.start, made)
        return ids

    def plan_growth(self, spec: ClusterSpec, indices: Sequence[int]) -> Plan:
        """More containers of the same network and with the same folder. Running them costs nothing."""
        requests = plan.container_requests(spec, indices, idle_seconds=self._idle_seconds)
        return self._with_gpus(Plan(spec=spec, requests=tuple(requests), dollars_per_hour=0.0))

    def grow(
        self, spec: ClusterSpec, indices: Sequence[int], *, journal: Journal, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Stopped containers of the same names are deleted first, then all containers at once."""
        cluster = self.cluster(spec.name)
        stopped = [node.index for node in cluster.nodes if node.state is NodeState.STOPPED] if cluster else []
        if left := self.shrink(spec.name, sorted({*stopped} & {*indices}), on_progress=on_progress):
            raise TeardownError(f"{left[0].object} is in the way: {left[0].reason}", hint=left[0].delete_with)
        return self.create(self.plan_growth(spec, indices), journal=journal, on_progress=on_progress)

    def vm_templates(self, spec: ClusterSpec, cluster: Cluster, indices: Sequence[int]) -> None:
        """A container cannot make others."""

    def host_keys(self, nodes: Sequence[Node]) -> Mapping[str, str]:
        """As containers have printed them."""
        found = {}
        for node in nodes:
            for status in filter(None, map(_status, self.console(node).splitlines())):
                if status.get("status") == "ready":
                    found[node.name] = str(status["host_key"])
        return found

    def set_size(self, name: str, nodes: int) -> None:
        """Labels cannot be changed here: the newest container's count, and what its machine remembers."""

    def wait_ready(
        self, nodes: Sequence[Node], *, deadline: float, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Follow every container's output until its node program says that sshd answers."""

        open_streams: set[Any] = set()

        def wait(node: Node) -> Node:
            ready = self._follow_until_ready(node, deadline, open_streams)
            on_progress(NodeProgress(object=node.name, step="ready", stage=Stage.DONE))
            return ready

        def hang_up_all() -> None:
            for stream in tuple(open_streams):
                _hang_up(stream)

        return side_by_side(wait, nodes, on_abort=hang_up_all)

    def _follow_until_ready(self, node: Node, deadline: float, open_streams: set[Any]) -> Node:
        from docker.errors import APIError

        said: list[str] = []
        try:
            stream = self._api.logs(node.id, stdout=True, stderr=True, stream=True, follow=True)
        except APIError as error:
            raise NodeError(f"node {node.name} is gone: {error.explanation}", hint="hvdcloud up") from error
        # The read below has no time limit of its own; closing the stream from outside ends it.
        open_streams.add(stream)
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), _hang_up, [stream])
        timer.daemon = True
        timer.start()
        try:
            for line in _lines(stream):
                status = _status(line)
                if status is None:
                    said.append(line)
                elif status.get("status") == "ready":
                    return self._with_address(node, host_key=status["host_key"])
                elif status.get("status") == "failed":
                    said.append(f"{status.get('step')}: {status.get('error')}")
        finally:
            timer.cancel()
            open_streams.discard(stream)
            _hang_up(stream)
        why = "did not come up in time" if time.monotonic() >= deadline else "stopped while coming up"
        raise NodeError(
            f"node {node.name} {why}",
            hint=f"docker logs {node.name} shows all of it; hvdcloud up tries again",
            details=log_of(f"node {node.name}", "\n".join(said[-20:])),
        )

    def _with_address(self, node: Node, *, host_key: str) -> Node:
        found = self._api.inspect_container(node.id)
        bindings = (found["NetworkSettings"]["Ports"] or {}).get(f"{SSH_PORT}/tcp") or []
        if not bindings:
            log = self.console(node)[-2000:]
            raise NodeError(f"node {node.name} stopped while coming up", hint="hvdcloud up", details=log)
        port = int(bindings[0]["HostPort"])
        return replace(node, state=NodeState.RUNNING, address="127.0.0.1", port=port, host_key=host_key)

    # --- looking --------------------------------------------------------------------------------------------------

    def cluster(self, name: str) -> Cluster | None:
        """From the labels of containers and networks."""
        return next(iter(self._clusters(f"{LABEL_CLUSTER}={name}")), None)

    def list(self) -> Listing:
        """Every cluster on this engine."""
        return Listing(clusters=tuple(self._clusters()))

    def _clusters(self, *labels: str) -> Sequence[Cluster]:
        ours = {"label": [*labels, OURS]}
        containers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        others: dict[str, list[tuple[ClusterObject, dict[str, str]]]] = defaultdict(list)
        for container in self._api.containers(all=True, filters=ours):
            containers[container["Labels"].get(LABEL_CLUSTER, "")].append(container)
        found = [(ObjectKind.NETWORK, network) for network in self._api.networks(filters=ours)]
        found += [(ObjectKind.VOLUME, volume) for volume in self._api.volumes(filters=ours).get("Volumes") or []]
        for kind, each in found:
            described = (ClusterObject(kind, each["Name"]), each["Labels"])
            others[each["Labels"].get(LABEL_CLUSTER, "")].append(described)
        return [
            view.describe_cluster(name, containers.get(name, []), others.get(name, []))
            for name in sorted({*containers, *others})
        ]

    def console(self, node: Node) -> str:
        """The container's output."""
        from docker.errors import APIError

        try:
            output = self._api.logs(node.id, stdout=True, stderr=True, tail=1000)
        except APIError as error:
            raise NodeError(f"node {node.name} has no log: {error.explanation}", hint="hvdcloud list") from error
        return bytes(output).decode(errors="replace")

    # --- deleting -------------------------------------------------------------------------------------------------

    def destroy(self, name: str, *, on_progress: OnProgress = ignore_progress) -> Sequence[Leftover]:
        """Containers at once, then networks and volumes; listed again until nothing is found or a minute is over."""
        return self._until_gone(lambda: self._destroy_once(name, on_progress))

    def _until_gone(self, once: Callable[[], Sequence[Leftover]]) -> Sequence[Leftover]:
        from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

        # An object that the engine is still deleting answers 409 and is gone a moment later.
        return Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(DESTROY_SECONDS),
            wait=wait_exponential(multiplier=0.01, max=2),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else [],
        )(once)

    def shrink(
        self, name: str, indices: Sequence[int], *, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Leftover]:
        """Delete their containers, and look for them again until nothing is found."""
        return self._until_gone(lambda: self._destroy_once(name, on_progress, indices=set(indices)))

    def _destroy_once(
        self, name: str, on_progress: OnProgress, *, indices: Collection[int] | None = None
    ) -> Sequence[Leftover]:
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
            return self._remove(*found, on_progress)

        # A network can only go when its containers are gone.
        return [*side_by_side(remove, containers), *side_by_side(remove, others)]

    def _remove(self, kind: str, name: str, object_id: str, on_progress: OnProgress) -> Leftover:
        from docker.errors import APIError, NotFound

        by_hand = {"container": "docker rm -f", "network": "docker network rm", "volume": "docker volume rm"}[kind]
        reason = "deleted, but not yet gone"
        try:
            if kind == "container":
                self._api.remove_container(object_id, force=True, v=True)
            elif kind == "network":
                self._detach_strangers(object_id)
                self._api.remove_network(object_id)
            else:
                self._api.remove_volume(object_id, force=True)
            on_progress(NodeProgress(object=f"{kind} {name}", step="deleted", stage=Stage.DELETED))
        except NotFound:
            reason = "gone, but still listed"
        except APIError as error:
            reason = str(error.explanation)
        return Leftover(object=f"{kind} {name}", reason=reason, delete_with=f"{by_hand} {name}")

    def _detach_strangers(self, network_id: str) -> None:
        """A foreign container that is attached to our network would keep it from being deleted."""
        for container_id in self._api.inspect_network(network_id).get("Containers") or {}:
            self._api.disconnect_container_from_network(container_id, network_id, force=True)


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


def _status(line: str) -> dict[str, Any] | None:
    """What a line of a node's output says of its state; None: it is another line."""
    status = parse_object(line.removeprefix(STATUS_PREFIX)) if line.startswith(STATUS_PREFIX) else None
    # Any process in the container may have written it.
    if status is None or (status.get("status") == "ready" and not is_host_key(status.get("host_key"))):
        return None
    return status if isinstance(status.get("status"), str) else None


def _hang_up(stream: Any) -> None:
    """Close a stream of the engine's; docker-py trips over one that has ended by itself."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.close()


def _lines(stream: Iterable[bytes]) -> Iterable[str]:
    """Whole lines from chunks that may end anywhere."""
    rest = b""
    for chunk in stream:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace").rstrip("\r")
