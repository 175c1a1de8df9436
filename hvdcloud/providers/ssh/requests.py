"""What the hosts' engines are asked for to make a cluster. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from hvdcloud.cluster.model import ClusterSpec, Request
from hvdcloud.providers.engine.gpus import GpuShare
from hvdcloud.providers.engine.requests import container_request, own_bucket, with_gpus

LABEL_ADDRESS = "hvdcloud-address"
"""On a container: its host's address, at which the other nodes reach it."""
LABEL_PORT = "hvdcloud-ssh-port"
"""On a container: where its sshd listens."""
FIRST_PORT, PORTS = 20000, 12768
"""Ports for the nodes' sshds: below those that Linux gives to outgoing connections (32768 and up)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest(Request):
    """A request to the engine of one host."""

    host: str
    """Its name in the configuration."""


def port_of(spec: ClusterSpec, index: int) -> int:
    """Where the sshd of a node listens: another port for each cluster and node, and the same whenever it is made."""
    digest = hashlib.sha256(f"{spec.id} {spec.node_name(index)}".encode()).digest()
    return FIRST_PORT + int.from_bytes(digest[:4], "big") % PORTS


def node_request(
    spec: ClusterSpec,
    index: int,
    *,
    host: str,
    address: str,
    gpus: GpuShare | None,
    environment: Mapping[str, str],
) -> HostRequest:
    """For the node of a host.

    Args:
        address: the host's, at which the other nodes reach it.
        gpus: of the host's, what the node gets; None: nothing.
        environment: as for `container_request`.
    """
    port = str(port_of(spec, index))
    made = container_request(
        spec,
        index,
        environment={"HVDCLOUD_SSH_PORT": port, "HVDCLOUD_SSH_ADDRESS": address, **environment},
        # Horovod's ranks listen on ports that only they know, and NCCL wants the host's own interfaces.
        host={"NetworkMode": "host", "Mounts": [own_bucket(spec, index)]},
        labels={LABEL_PORT: port, LABEL_ADDRESS: address},
    )
    request = HostRequest(object=f"{made.object} on {host}", method=made.method, body=made.body, host=host)
    return request if gpus is None else with_gpus(request, gpus)
