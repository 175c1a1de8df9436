"""What the engine is asked for to make a cluster. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from hvdcloud.cluster.model import SSH_PORT, ClusterSpec, Request
from hvdcloud.node.paths import MOUNTED
from hvdcloud.providers.engine.requests import BUCKET_IN_NODE, container_request


def network_request(spec: ClusterSpec) -> Request:
    """For the cluster's network."""
    name = network_name(spec.name)
    body = {"name": name, "driver": "bridge", "check_duplicate": True, "labels": spec.labels}
    return Request(object=f"network {name}", method="POST /networks/create", body=body)


def container_requests(
    spec: ClusterSpec, indices: Sequence[int], *, limits: Mapping[str, str] = MappingProxyType({})
) -> list[Request]:
    """For some of the nodes of a cluster; `limits`: by `limits` of engine/requests.py."""
    network, port = network_name(spec.name), f"{SSH_PORT}/tcp"
    # All nodes share this machine's cores, so each takes its part of them.
    cores = str(max(1, (os.cpu_count() or 1) // spec.nodes))
    environment = {"HVDCLOUD_CORES": cores, **limits}
    host = {
        "NetworkMode": network,
        "PortBindings": {port: [{"HostIp": "127.0.0.1", "HostPort": ""}]},
        "Binds": [f"{os.path.realpath(unquote(urlsplit(spec.bucket).path))}:{BUCKET_IN_NODE}:rw"],
        # A bind in the other form would make a folder that is missing, and cannot have a colon in its name.
        "Mounts": [
            {"Type": "bind", "Source": folder, "Target": there, "ReadOnly": True}
            for there, folder in data_mounts(spec).items()
        ],
    }
    return [
        container_request(
            spec,
            index,
            environment=environment,
            host=host,
            more={
                "ExposedPorts": {port: {}},
                "NetworkingConfig": {"EndpointsConfig": {network: {"Aliases": [spec.node_name(index)]}}},
            },
        )
        for index in indices
    ]


def data_mounts(spec: ClusterSpec) -> Mapping[str, str]:
    """The folders of this machine with data sets, by where they are in a node."""
    return {f"{MOUNTED}/{name}": str(each.folder) for name, each in spec.data.items() if each.folder is not None}


def network_name(cluster: str) -> str:
    """The cluster's own network."""
    return f"hvdcloud-{cluster}"
