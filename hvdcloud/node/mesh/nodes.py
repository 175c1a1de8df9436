"""The nodes of this node's cluster, as `join` has noted them."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping, Sequence

from hvdcloud.node import machine, paths
from hvdcloud.node.files import read_json, write_json


def node_names() -> list[str]:
    """The names of the cluster's nodes, head first; empty before `join`."""
    return _noted("nodes")


def node_addresses() -> list[str]:
    """Their IPv4 addresses, as far as they were known."""
    return _noted("addresses")


def peer_ports() -> dict[str, int]:
    """By name, where the sshd of each of the cluster's nodes answers; empty before `join`."""
    hosts = (read_json(paths.peers_file()) or {}).get("hosts") or ()
    return {str(host["name"]): int(host["port"]) for host in hosts}


def mesh_interface() -> str:
    """The interface of this node that leads to the other ones; `lo` for a node that is alone. No name is looked up."""
    return machine.mesh_interface(node_addresses() if len(node_names()) > 1 else [])


def remember_nodes(nodes: Sequence[str], addresses: Mapping[str, str]) -> None:
    """Note the cluster's nodes, head first, and the IPv4 addresses of those that are known: they are not from outside.
    Addresses are resolved now: the entrypoint, which needs them later, must not wait for a name service."""
    found = []
    for name in nodes:
        with contextlib.suppress(OSError):
            found.append(addresses.get(name) or socket.gethostbyname(name))
    write_json(paths.mesh_file(), {"nodes": list(nodes), "addresses": found})


def _noted(key: str) -> list[str]:
    value = (read_json(paths.mesh_file()) or {}).get(key)
    return [str(each) for each in value] if isinstance(value, list) else []
