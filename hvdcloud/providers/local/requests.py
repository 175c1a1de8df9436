"""What the engine is asked for to make a cluster. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import unquote, urlsplit

from hvdcloud.cluster.model import LABEL_NODE, SSH_PORT, ClusterSpec, Plan, Request
from hvdcloud.providers.base import NodeBucket
from hvdcloud.providers.engine.gpus import LABEL_GPUS, Device
from hvdcloud.providers.local.view import LABEL_BUCKET, LABEL_IMAGE

BUCKET_IN_NODE = "/var/lib/hvdcloud/bucket"
HOST_FROM_NODE = "host.docker.internal"
# NCCL and torch's DataLoader workers share memory; Docker's 64 MB default is too small for them.
SHM_SIZE = 1 << 30
CAPABILITIES = (
    # sshd: the separation of its privileges, and what Debian's writes to the kernel's audit log at a login.
    "AUDIT_WRITE",
    "SETGID",
    "SETUID",
    "SYS_CHROOT",
    # The node program: files that another user owns, of ranks under `run.user` or in a mounted bucket.
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    # Its agents: they end ranks, and after the loss of a node they break what still connects workers to it.
    "KILL",
    "SYS_PTRACE",
)
"""All that a node's root may do. startup/common.sh has the same list."""
TMPFS = {"/run/hvdcloud": "rw,noexec,nosuid,nodev,size=16m,mode=0700"}
"""Secrets, locks and sockets: in memory, never on a disk, and for root alone."""


class NetworkRequest(Request):
    """The request for a cluster's network."""


def make_plan(spec: ClusterSpec, *, idle_seconds: float | None = None) -> Plan:
    """One network and `spec.nodes` containers. Running them costs nothing.

    Args:
        idle_seconds: without a run and without an SSH session, after which the nodes end themselves; None: never.
    """
    network = network_name(spec.name)
    body = {"name": network, "driver": "bridge", "check_duplicate": True, "labels": spec.labels}
    first = NetworkRequest(object=f"network {network}", method="POST /networks/create", body=body)
    containers = container_requests(spec, range(spec.nodes), idle_seconds=idle_seconds)
    return Plan(spec=spec, requests=(first, *containers), dollars_per_hour=0.0)


def container_requests(
    spec: ClusterSpec, indices: Sequence[int], *, idle_seconds: float | None = None
) -> list[Request]:
    """For some of the nodes of a cluster; arguments as for `make_plan`."""
    network = network_name(spec.name)
    requests = []
    seen = bucket_as_seen_by_nodes(bucket=spec.bucket, bucket_endpoint=None)
    cores = max(1, (os.cpu_count() or 1) // spec.nodes)
    limit = {} if idle_seconds is None else {"HVDCLOUD_IDLE": f"{idle_seconds:g}"}
    for index in indices:
        name = spec.node_name(index)
        body = {
            "name": name,
            "image": spec.image,
            "hostname": name,
            "labels": {**spec.labels, LABEL_NODE: str(index), LABEL_BUCKET: spec.bucket, LABEL_IMAGE: spec.image},
            "environment": {
                "HVDCLOUD_AUTHORIZED_KEY": spec.authorized_key,
                "HVDCLOUD_NODE": name,
                # All nodes share this machine's cores, so each takes its part of them.
                "HVDCLOUD_CORES": str(cores),
                **limit,
            },
            "network": network,
            "publish": f"127.0.0.1::{SSH_PORT}",
            "mounts": dict(seen.mounts),
            "shm_size": SHM_SIZE,
            "tmpfs": dict(TMPFS),
            "cap_drop": ["ALL"],
            "cap_add": list(CAPABILITIES),
            "security_opt": ["no-new-privileges"],
            "extra_hosts": {HOST_FROM_NODE: "host-gateway"},
        }
        requests.append(Request(object=f"container {name}", method="POST /containers/create", body=body))
    return requests


def with_gpus(request: Request, devices: Sequence[Device], device_request: Mapping[str, Any]) -> Request:
    """The request for a container with these GPUs, and with the label that says that it has them.

    Args:
        device_request: as `engine.gpus.device_request` makes it.
    """
    labels = {**request.body["labels"], LABEL_GPUS: ",".join(device.uuid for device in devices)}
    return replace(request, body={**request.body, "labels": labels, "device_requests": [dict(device_request)]})


def node_index(request: Request) -> int | None:
    """The number of the node whose container is asked for; None: it is for something else."""
    index = request.body["labels"].get(LABEL_NODE)
    return None if index is None else int(index)


def bucket_as_seen_by_nodes(*, bucket: str, bucket_endpoint: str | None) -> NodeBucket:
    """A folder is mounted into the node; a server on this machine's loopback has another name there."""
    mounts = {}
    if bucket.startswith("file://"):
        mounts = {unquote(urlsplit(bucket).path): BUCKET_IN_NODE}
        bucket = f"file://{BUCKET_IN_NODE}"
    if bucket_endpoint:
        for loopback in ("127.0.0.1", "localhost", "0.0.0.0"):
            bucket_endpoint = bucket_endpoint.replace(f"//{loopback}", f"//{HOST_FROM_NODE}")
    return NodeBucket(bucket=bucket, bucket_endpoint=bucket_endpoint, mounts=mounts)


def network_name(cluster: str) -> str:
    """The cluster's own network."""
    return f"hvdcloud-{cluster}"
