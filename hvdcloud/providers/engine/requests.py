"""What an engine is asked for to make a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from hvdcloud.cluster.model import LABEL_NODE, ClusterSpec, Request
from hvdcloud.providers.engine.gpus import LABEL_GPUS, GpuShare
from hvdcloud.providers.engine.view import LABEL_BUCKET, LABEL_IMAGE

R = TypeVar("R", bound=Request)

# NCCL and torch's DataLoader workers share memory; Docker's 64 MB default is too small for them.
SHM_SIZE = 1 << 30
CAPABILITIES = (
    # sshd: the separation of its privileges, and what Debian's writes to the kernel's audit log at a login.
    "AUDIT_WRITE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
    # The node program: files that another user owns, in a mounted bucket.
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    # Its agents: they end ranks, and look at the stacks of those that are stuck.
    "KILL",
    "SYS_PTRACE",
)
"""All that a node's root may do. startup/common.sh has the same list."""
BUCKET_IN_NODE = "/var/lib/hvdcloud/bucket"
"""Where a node has a folder bucket: a folder of this machine, or a volume of its own."""
TMPFS = {"/run/hvdcloud": "rw,noexec,nosuid,nodev,size=16m,mode=0700"}
"""Secrets, locks and sockets: in memory, never on a disk, and for root alone."""


def limits(*, idle_seconds: float | None, longest_seconds: float | None = None) -> Mapping[str, str]:
    """The environment variables that say when a node ends itself: so many seconds without a run and without an SSH
    session, and so many seconds in any case; None: never."""
    seconds = {"HVDCLOUD_IDLE": idle_seconds, "HVDCLOUD_TIME_LIMIT": longest_seconds}
    return {name: f"{value:g}" for name, value in seconds.items() if value is not None}


def container_request(
    spec: ClusterSpec,
    index: int,
    *,
    environment: Mapping[str, str],
    host: Mapping[str, Any],
    labels: Mapping[str, str] = MappingProxyType({}),
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Request:
    """For the container of one node, in the words of Docker's API.

    Args:
        environment: of the node program, beside its key and its name.
        host: more of its HostConfig: the network that it is in, what is mounted, which ports are published.
        labels: beside those of every node.
        more: beside all this.
    """
    name = spec.node_name(index)
    variables = {"HVDCLOUD_AUTHORIZED_KEY": spec.authorized_key, "HVDCLOUD_NODE": name, **environment}
    body = {
        "Hostname": name,
        "Image": spec.image,
        "Labels": {**spec.labels, LABEL_NODE: str(index), LABEL_BUCKET: spec.bucket, LABEL_IMAGE: spec.image, **labels},
        "Env": [f"{key}={value}" for key, value in variables.items()],
        "HostConfig": {
            "ShmSize": SHM_SIZE,
            "Tmpfs": dict(TMPFS),
            "CapDrop": ["ALL"],
            "CapAdd": list(CAPABILITIES),
            "SecurityOpt": ["no-new-privileges"],
            **host,
        },
        **more,
    }
    return Request(object=f"container {name}", method=f"POST /containers/create?name={name}", body=body)


def own_bucket(spec: ClusterSpec, index: int) -> dict[str, Any]:
    """The mount of a volume for a folder bucket of the node's own: it outlives the container, and the engine's prune
    commands leave a named volume alone."""
    labels = {**spec.labels, LABEL_NODE: str(index), LABEL_BUCKET: spec.bucket}
    return {
        "Type": "volume",
        "Source": f"{spec.node_name(index)}-{spec.id}",
        "Target": BUCKET_IN_NODE,
        "VolumeOptions": {"Labels": labels},
    }


def with_gpus(request: R, share: GpuShare) -> R:
    """The request for a container with its GPUs, and with the label that says that it has them."""
    body = request.body
    labels = {**body["Labels"], LABEL_GPUS: ",".join(device.uuid for device in share.devices)}
    host = {**body["HostConfig"], "DeviceRequests": [dict(share.request)]}
    return replace(request, body={**body, "Labels": labels, "HostConfig": host})
