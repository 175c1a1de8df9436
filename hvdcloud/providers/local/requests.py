"""What the engine is asked for to make a cluster. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from urllib.parse import unquote, urlsplit

from hvdcloud.cluster.model import SSH_PORT, ClusterSpec, Plan, Request
from hvdcloud.node.paths import MOUNTED
from hvdcloud.providers.base import NodeBucket
from hvdcloud.providers.engine.requests import BUCKET_IN_NODE, container_request


def make_plan(spec: ClusterSpec, *, idle_seconds: float | None = None) -> Plan:
    """One network and `spec.nodes` containers. Running them costs nothing.

    Args:
        idle_seconds: without a run and without an SSH session, after which the nodes end themselves; None: never.
    """
    network = network_name(spec.name)
    body = {"name": network, "driver": "bridge", "check_duplicate": True, "labels": spec.labels}
    first = Request(object=f"network {network}", method="POST /networks/create", body=body)
    containers = container_requests(spec, range(spec.nodes), idle_seconds=idle_seconds)
    return Plan(spec=spec, requests=(first, *containers), dollars_per_hour=0.0)


def container_requests(
    spec: ClusterSpec, indices: Sequence[int], *, idle_seconds: float | None = None
) -> list[Request]:
    """For some of the nodes of a cluster; arguments as for `make_plan`."""
    network = network_name(spec.name)
    seen = bucket_as_seen_by_nodes(spec.bucket)
    cores = max(1, (os.cpu_count() or 1) // spec.nodes)
    folders = data_mounts(spec)
    limit = {} if idle_seconds is None else {"HVDCLOUD_IDLE": f"{idle_seconds:g}"}
    return [
        container_request(
            spec,
            index,
            network=network,
            # All nodes share this machine's cores, so each takes its part of them.
            environment={"HVDCLOUD_CORES": str(cores), **limit},
            mounts=seen.mounts,
            more={
                "publish": f"127.0.0.1::{SSH_PORT}",
                **({"read_only_mounts": folders} if folders else {}),
            },
        )
        for index in indices
    ]


def bucket_as_seen_by_nodes(bucket: str) -> NodeBucket:
    """The folder is mounted into the node."""
    mounts = {os.path.realpath(unquote(urlsplit(bucket).path)): BUCKET_IN_NODE}
    return NodeBucket(bucket=f"file://{BUCKET_IN_NODE}", mounts=mounts)


def data_mounts(spec: ClusterSpec) -> Mapping[str, str]:
    """The folders of this machine with data sets, by where they are in a node."""
    return {f"{MOUNTED}/{name}": str(each.folder) for name, each in spec.data.items() if each.folder is not None}


def network_name(cluster: str) -> str:
    """The cluster's own network."""
    return f"hvdcloud-{cluster}"
