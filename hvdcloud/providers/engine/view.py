"""What the engine answers, in the words of the provider contract. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hvdcloud.cluster.model import (
    LABEL_CLUSTER,
    LABEL_ID,
    LABEL_NODE,
    LABEL_NODES,
    LABEL_OWNER,
    SSH_PORT,
    Cluster,
    ClusterObject,
    Node,
    NodeState,
    created_by,
)
from hvdcloud.engine import says_disk_full
from hvdcloud.errors import CapacityError, HvdcloudError, NodeError, UsageError
from hvdcloud.json_values import whole_number
from hvdcloud.providers.engine.gpus import TOOLKIT_HINT

# A container's label may hold any text, so the whole bucket URL and image reference fit; Compute Engine's cannot.
LABEL_BUCKET = "hvdcloud-bucket"
LABEL_IMAGE = "hvdcloud-image"

_STATES = {"created": NodeState.STARTING, "restarting": NodeState.STARTING, "running": NodeState.RUNNING}
_STATES |= {"paused": NodeState.FROZEN}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineObjects:
    """What carries our labels on one engine, or on several: containers as the engine lists them, and the rest with its
    labels."""

    containers: tuple[dict[str, Any], ...] = ()
    others: tuple[tuple[ClusterObject, dict[str, str]], ...] = ()


def describe_clusters(
    objects: EngineObjects, *, provider: str, describe: Callable[[dict[str, Any]], Node]
) -> Sequence[Cluster]:
    """The clusters of these objects, by name, as their labels describe them.

    Args:
        describe: a node, from its container as the engine lists it.
    """
    containers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    others: dict[str, list[tuple[ClusterObject, dict[str, str]]]] = defaultdict(list)
    for container in objects.containers:
        containers[container["Labels"].get(LABEL_CLUSTER, "")].append(container)
    for other, labels in objects.others:
        others[labels.get(LABEL_CLUSTER, "")].append((other, labels))
    found = []
    for name in sorted({*containers, *others}):
        # Docker's labels cannot be changed: the newest of the nodes knows how many there are.
        newest = max(containers[name], key=lambda each: whole_number(each.get("Created")), default=None)
        labels = newest["Labels"] if newest else others[name][0][1]
        cluster = Cluster(
            name=name,
            id=labels.get(LABEL_ID, ""),
            owner=labels.get(LABEL_OWNER, ""),
            provider=provider,
            created=created_by(labels),
            expected_nodes=whole_number(labels.get(LABEL_NODES)),
            nodes=tuple(sorted(map(describe, containers[name]), key=lambda node: node.index)),
            image=labels.get(LABEL_IMAGE, ""),
            bucket=labels.get(LABEL_BUCKET, ""),
            other_objects=tuple(sorted(other for other, _ in others[name])),
            worst_case_dollars=0.0,
        )
        found.append(cluster)
    return found


def index_of(container: dict[str, Any]) -> int:
    """The node's number, by its label."""
    return whole_number(container["Labels"].get(LABEL_NODE))


def node_of(container: dict[str, Any]) -> Node:
    """A node whose sshd the engine publishes on a loopback port."""
    ports = [port for port in container.get("Ports") or [] if port.get("PrivatePort") == SSH_PORT]
    public = next((port["PublicPort"] for port in ports if port.get("PublicPort")), None)
    return Node(
        name=container["Names"][0].removeprefix("/"),
        index=index_of(container),
        id=container["Id"],
        state=_STATES.get(container["State"], NodeState.STOPPED),
        address="127.0.0.1" if public else None,
        port=public or SSH_PORT,
    )


def engine_refused(what: str, error: Any) -> HvdcloudError:
    """The error of a request for an object, `network hvdcloud-digits`, that docker-py's `error` says was refused."""
    text = str(error.explanation)
    if says_disk_full(text):
        return CapacityError(f"{what}: the disk is full: {text}", hint="docker system df shows what takes the room")
    if "address pool" in text or "overlaps" in text:
        hint = "docker network prune deletes networks that no container uses"
        return CapacityError(f"{what}: the engine has no free subnet: {text}", hint=hint)
    if "could not select device driver" in text:
        return NodeError(f"{what}: the Docker engine gives no GPU to containers: {text}", hint=TOOLKIT_HINT)
    if "ambiguous" in text:
        # The engine accepts two networks of one name if both are requested at the same moment.
        return UsageError(f"{what}: another `up` creates a cluster of this name", hint="hvdcloud list shows it")
    return NodeError(f"{what}: the Docker engine refused: {text}", hint="fix the cause, then hvdcloud up again")
