"""The nodes of this node's cluster, as `join` has noted them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hvdcloud.node import machine, paths
from hvdcloud.node.files import read_json, write_json


class Peer(NamedTuple):
    """A node of the cluster, as the payload of `join` and peers.json have it."""

    name: str
    address: str
    """An IP address, or a DNS name; in peers.json resolved: the name of a VM that is gone could not be any more."""
    port: int
    host_key: str


def remember(peers: Sequence[Peer]) -> None:
    """Note the cluster's nodes, head first."""
    write_json(paths.peers_file(), {"hosts": [peer._asdict() for peer in peers]})


def known() -> list[Peer]:
    """The cluster's nodes, head first; empty before `join`."""
    return [Peer(**each) for each in (read_json(paths.peers_file()) or {}).get("hosts", ())]


def node_names() -> list[str]:
    """The names of the cluster's nodes, head first; empty before `join`."""
    return [peer.name for peer in known()]


def mesh_interface() -> str:
    """The interface of this node that leads to the other ones; `lo` for a node that is alone: Horovod wants an
    interface with 127.0.0.1 where all ranks are on one host (driver_service.py, get_local_interfaces)."""
    own = machine.name()
    found = (machine.interface_towards(peer.address) for peer in known() if peer.name != own)
    return next(filter(None, found), machine.LOOPBACK)
