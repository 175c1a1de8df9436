"""What an engine is asked for to make a node. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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


def container_request(
    spec: ClusterSpec,
    index: int,
    *,
    network: str,
    environment: Mapping[str, str],
    mounts: Mapping[str, str],
    more: Mapping[str, Any],
) -> Request:
    """For one node of a cluster.

    Args:
        network: the engine's, which the container is in.
        environment: of the node program, beside its key and its name.
        mounts: what is in the node, by folder of the engine's machine or by volume.
        more: what this provider's containers have beside (containers.py): `publish` (those with an address of their
            own; None: nothing is published), `read_only_mounts` (folders of the engine's machine, by
            what is in the node).
    """
    name = spec.node_name(index)
    body = {
        "name": name,
        "image": spec.image,
        "hostname": name,
        "labels": {**spec.labels, LABEL_NODE: str(index), LABEL_BUCKET: spec.bucket, LABEL_IMAGE: spec.image},
        "environment": {"HVDCLOUD_AUTHORIZED_KEY": spec.authorized_key, "HVDCLOUD_NODE": name, **environment},
        "network": network,
        "mounts": dict(mounts),
        "shm_size": SHM_SIZE,
        "tmpfs": dict(TMPFS),
        "cap_drop": ["ALL"],
        "cap_add": list(CAPABILITIES),
        "security_opt": ["no-new-privileges"],
        **more,
    }
    return Request(object=f"container {name}", method="POST /containers/create", body=body)


def with_bucket(body: Mapping[str, Any], spec: ClusterSpec, index: int) -> Mapping[str, Any]:
    """The body of a request for a node's container, with a volume for a folder bucket of its own: that outlives the
    container, and the engine's prune commands leave a named volume alone."""
    volume = f"{spec.node_name(index)}-{spec.id}"
    labels = {key: value for key, value in body["labels"].items() if key in (*spec.labels, LABEL_NODE, LABEL_BUCKET)}
    return {**body, "mounts": {**body["mounts"], volume: BUCKET_IN_NODE}, "volumes": {volume: labels}}


def with_gpus(request: R, found: Mapping[int, GpuShare]) -> R:
    """The request for a container with its GPUs, and with the label that says that it has them; others as they are.

    Args:
        found: what each node gets, by its number.
    """
    index = node_index(request)
    if index is None or index not in found:
        return request
    share = found[index]
    labels = {**request.body["labels"], LABEL_GPUS: ",".join(device.uuid for device in share.devices)}
    return replace(request, body={**request.body, "labels": labels, "device_requests": [dict(share.request)]})


def node_index(request: Request) -> int | None:
    """The number of the node whose container is asked for; None: it is for something else."""
    index = request.body["labels"].get(LABEL_NODE)
    return None if index is None else int(index)
