"""Nodes as containers on this machine's Docker engine, on a network of their own.

Every container publishes its sshd on a loopback port that the engine picks, so that the laptop reaches it the same way
on Linux and where the engine lives in a virtual machine. Between nodes, Docker's DNS resolves node names.
"""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hvdcloud.errors import CapacityError, HvdcloudError, ImageError, NodeError, UsageError
from hvdcloud.parallel import side_by_side
from hvdcloud.providers.base import (
    LABEL_CLUSTER,
    LABEL_MANAGED_BY,
    MANAGED_BY,
    SSH_PORT,
    Cluster,
    ClusterSpec,
    Leftover,
    Listing,
    Node,
    NodeProgress,
    NodeSight,
    NodeState,
    OnProgress,
    Plan,
    Problem,
    Request,
    ignore_progress,
)
from hvdcloud.providers.local import plan, view

if TYPE_CHECKING:
    from docker import DockerClient

    from hvdcloud.state import Journal

DESTROY_SECONDS = 60.0
START_ATTEMPTS = 5
STATUS_PREFIX = "hvdcloud-status "


class LocalProvider:
    """Containers on one Docker engine.

    Args:
        client: docker-py's client; its API object is used from several threads at once.
        idle_seconds: without a run and without an SSH session, after which the nodes end themselves; None: never.
    """

    name = "local"
    ready_seconds = 180.0

    def __init__(self, client: DockerClient, *, idle_seconds: float | None = None) -> None:
        self._api = client.api
        self._idle_seconds = idle_seconds

    # --- planning -------------------------------------------------------------------------------------------------

    def preflight(self, spec: ClusterSpec) -> Sequence[Problem]:
        """A name that is taken, an image that is not there."""
        problems = []
        names = {spec.node_name(index) for index in range(spec.nodes)}
        for container in self._api.containers(all=True):
            for name in names & {name.removeprefix("/") for name in container["Names"]}:
                problems.append(view.name_taken(name, container["Labels"], spec))
        if not self._api.images(name=spec.image, quiet=True):
            problems.append(
                Problem(message=f"image {spec.image} is not on this engine", hint="hvdcloud build", error=ImageError)
            )
        return problems

    def plan(self, spec: ClusterSpec) -> Plan:
        """One network and a container for each node. Running them costs nothing."""
        return plan.make_plan(spec, idle_seconds=self._idle_seconds)

    def sight(self, *, bucket: str, bucket_endpoint: str | None) -> NodeSight:
        """A folder is mounted into the node; a server on this machine's loopback has another name there."""
        return plan.sight(bucket=bucket, bucket_endpoint=bucket_endpoint)

    # --- creating -------------------------------------------------------------------------------------------------

    def create(self, plan: Plan, *, journal: Journal, on_progress: OnProgress = ignore_progress) -> Sequence[Node]:
        """Network first, then all containers at once."""
        spec = plan.spec
        made: list[tuple[str, str]] = []
        network_request, *container_requests = plan.requests

        def create_network(request: Request) -> None:
            made.append(("network", self._create_network(request.body)))

        def create_container(request: Request) -> str:
            on_progress(NodeProgress(object=request.body["name"], step="creating"))
            container_id = self._create_container(request.body)
            made.append(("container", container_id))
            self._start(request.body["name"], container_id)
            on_progress(NodeProgress(object=request.body["name"], step="booting"))
            return container_id

        try:
            for path in network_request.body, *(request.body for request in container_requests):
                for folder in path.get("mounts", {}):
                    _make_folder(Path(folder))
            journal.record(
                "create", cluster_id=spec.id, cluster=spec.name, objects=[request.object for request in plan.requests]
            )
            # In a thread: Ctrl-C must not leave us without the answer to a request that the engine goes on with.
            side_by_side(create_network, [network_request])
            side_by_side(create_container, container_requests)
        except BaseException as error:
            # Only what this call made: a cluster of the same name that somebody else made meanwhile stays.
            left = self._undo(made)
            if left and isinstance(error, HvdcloudError):
                error.details = "\n".join([error.details, *left]).strip()
            raise
        cluster = self.cluster(spec.name)
        assert cluster is not None
        return list(cluster.nodes)

    def _create_network(self, body: Mapping[str, Any]) -> str:
        from docker.errors import APIError

        try:
            created = self._api.create_network(
                body["name"],
                driver=body["driver"],
                check_duplicate=body["check_duplicate"],
                labels=dict(body["labels"]),
            )
        except APIError as error:
            text = str(error.explanation)
            if error.status_code == 409 or "already exists" in text:
                raise UsageError(
                    f"the network {body['name']} exists already",
                    hint=f"hvdcloud down --name {body['labels'][LABEL_CLUSTER]} deletes it if it is ours; "
                    "else take another --name",
                ) from None
            if "address pool" in text or "overlaps" in text:
                raise CapacityError(
                    f"the engine has no free subnet for the network {body['name']}: {text}",
                    hint="docker network prune deletes networks that no container uses",
                ) from None
            raise view.engine_refused(f"network {body['name']}", error) from error
        return str(created["Id"])

    def _create_container(self, body: Mapping[str, Any]) -> str:
        from docker.errors import APIError, ImageNotFound

        host_config = self._api.create_host_config(
            port_bindings={SSH_PORT: ("127.0.0.1",)},
            binds=[f"{folder}:{target}:rw" for folder, target in body["mounts"].items()],
            shm_size=body["shm_size"],
            extra_hosts=dict(body["extra_hosts"]),
            network_mode=body["network"],
        )
        try:
            created = self._api.create_container(
                body["image"],
                name=body["name"],
                hostname=body["hostname"],
                labels=dict(body["labels"]),
                environment=dict(body["environment"]),
                ports=[SSH_PORT],
                host_config=host_config,
                networking_config={"EndpointsConfig": {body["network"]: {"Aliases": [body["hostname"]]}}},
            )
        except ImageNotFound:
            raise ImageError(f"image {body['image']} is not on this engine", hint="hvdcloud build") from None
        except APIError as error:
            if error.status_code == 409:
                raise UsageError(
                    f"the container name {body['name']} is taken",
                    hint=f"hvdcloud list shows whose it is; hvdcloud down --name {body['labels'][LABEL_CLUSTER]} "
                    "deletes a cluster of ours; else take another --name",
                ) from None
            raise view.engine_refused(f"container {body['name']}", error) from error
        return str(created["Id"])

    def _start(self, name: str, container_id: str) -> None:
        from docker.errors import APIError

        for attempt in range(1, START_ATTEMPTS + 1):
            try:
                self._api.start(container_id)
            except APIError as error:
                text = str(error.explanation)
                if "port is already allocated" not in text and "address already in use" not in text:
                    raise view.engine_refused(f"container {name}", error) from error
                # The engine has tried ten ports that other programs hold; the next time it tries the ten after them.
                if attempt == START_ATTEMPTS:
                    raise NodeError(
                        f"container {name}: the engine found no free loopback port for its sshd: {text}",
                        hint="end the programs that hold these ports, then hvdcloud up again",
                    ) from None
            else:
                return

    def _undo(self, made: Iterable[tuple[str, str]]) -> list[str]:
        """Delete what `create` made, containers before their network. Returns what resisted."""
        from docker.errors import APIError, NotFound

        left = []
        for kind, object_id in sorted(made, key=lambda entry: entry[0]):
            try:
                if kind == "container":
                    self._api.remove_container(object_id, force=True, v=True)
                else:
                    self._api.remove_network(object_id)
            except NotFound:
                continue
            except APIError as error:
                left.append(f"{kind} {object_id[:12]} could not be deleted: {error.explanation}")
        return left

    def wait_ready(
        self, nodes: Sequence[Node], *, deadline: float, on_progress: OnProgress = ignore_progress
    ) -> Sequence[Node]:
        """Follow every container's output until its node program says that sshd answers."""

        open_streams: set[Any] = set()

        def wait(node: Node) -> Node:
            ready = self._follow_until_ready(node, deadline, open_streams)
            on_progress(NodeProgress(object=node.name, step="ready"))
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
                if not line.startswith(STATUS_PREFIX):
                    said.append(line)
                    continue
                status = json.loads(line.removeprefix(STATUS_PREFIX))
                if status["status"] == "ready":
                    return self._with_address(node, host_key=status["host_key"])
                if status["status"] == "failed":
                    said.append(f"{status.get('step')}: {status.get('error')}")
        finally:
            timer.cancel()
            open_streams.discard(stream)
            _hang_up(stream)
        why = "did not come up in time" if time.monotonic() >= deadline else "stopped while coming up"
        raise NodeError(
            f"node {node.name} {why}",
            hint=f"docker logs {node.name} shows all of it; hvdcloud up tries again",
            details="\n".join(said[-20:]),
        )

    def _with_address(self, node: Node, *, host_key: str) -> Node:
        found = self._api.inspect_container(node.id)
        bindings = (found["NetworkSettings"]["Ports"] or {}).get(f"{SSH_PORT}/tcp") or []
        if not bindings:
            raise NodeError(
                f"node {node.name} stopped while coming up", hint="hvdcloud up", details=self.console(node)[-2000:]
            )
        return Node(
            name=node.name,
            index=node.index,
            id=node.id,
            state=NodeState.RUNNING,
            address="127.0.0.1",
            port=int(bindings[0]["HostPort"]),
            host_key=host_key,
        )

    # --- looking --------------------------------------------------------------------------------------------------

    def cluster(self, name: str) -> Cluster | None:
        """From the labels of containers and networks."""
        return next(iter(self._clusters({"label": [_label(LABEL_CLUSTER, name)]})), None)

    def list(self) -> Listing:
        """Every cluster on this engine."""
        return Listing(clusters=tuple(self._clusters({"label": []})))

    def _clusters(self, filters: Mapping[str, Sequence[str]]) -> Sequence[Cluster]:
        ours = {"label": [*filters["label"], _label(LABEL_MANAGED_BY, MANAGED_BY)]}
        containers: dict[str, list[dict[str, Any]]] = defaultdict(list)
        others: dict[str, list[tuple[str, dict[str, str]]]] = defaultdict(list)
        for container in self._api.containers(all=True, filters=ours):
            containers[container["Labels"].get(LABEL_CLUSTER, "")].append(container)
        for network in self._api.networks(filters=ours):
            others[network["Labels"].get(LABEL_CLUSTER, "")].append((f"network {network['Name']}", network["Labels"]))
        for volume in self._api.volumes(filters=ours).get("Volumes") or []:
            others[volume["Labels"].get(LABEL_CLUSTER, "")].append((f"volume {volume['Name']}", volume["Labels"]))
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
        from tenacity import Retrying, retry_if_result, stop_after_delay, wait_exponential

        # An object that the engine is still deleting answers 409 and is gone a moment later.
        return Retrying(
            retry=retry_if_result(bool),
            stop=stop_after_delay(DESTROY_SECONDS),
            wait=wait_exponential(multiplier=0.01, max=2),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else [],
        )(self._destroy_once, name, on_progress)

    def _destroy_once(self, name: str, on_progress: OnProgress) -> Sequence[Leftover]:
        """Delete what there is; what was found, whether or not it could be deleted, is to be looked for once more."""
        labels = {"label": [_label(LABEL_CLUSTER, name), _label(LABEL_MANAGED_BY, MANAGED_BY)]}
        containers = [
            ("container", found["Names"][0].removeprefix("/"), found["Id"])
            for found in self._api.containers(all=True, filters=labels)
        ]
        others = [("network", found["Name"], found["Id"]) for found in self._api.networks(filters=labels)]
        for volume in self._api.volumes(filters=labels).get("Volumes") or []:
            others.append(("volume", volume["Name"], volume["Name"]))

        def remove(found: tuple[str, str, str]) -> Leftover:
            kind, object_name, object_id = found
            return self._remove(kind, object_name, object_id, on_progress)

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
            on_progress(NodeProgress(object=f"{kind} {name}", step="deleted"))
        except NotFound:
            reason = "gone, but still listed"
        except APIError as error:
            reason = str(error.explanation)
        return Leftover(object=f"{kind} {name}", reason=reason, delete_with=f"{by_hand} {name}")

    def _detach_strangers(self, network_id: str) -> None:
        """A foreign container that somebody attached to our network would keep it from being deleted."""
        for container_id in self._api.inspect_network(network_id).get("Containers") or {}:
            self._api.disconnect_container_from_network(container_id, network_id, force=True)


def _make_folder(path: Path) -> None:
    """The folder that is to be mounted: the engine would make a missing one root's."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind = CapacityError if error.errno in (errno.ENOSPC, errno.EDQUOT) else UsageError
        raise kind(
            f"the bucket's folder {path} cannot be made: {error.strerror}",
            hint="checkpoints.bucket in hvdcloud.yaml, or --bucket, names another one",
        ) from error


def _label(key: str, value: str) -> str:
    return f"{key}={value}"


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
