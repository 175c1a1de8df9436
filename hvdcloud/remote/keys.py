"""Key pairs, pinned host keys and the configuration that makes plain `ssh NODE` work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hvdcloud.cluster.files import read_private, write_private
from hvdcloud.errors import NodeError
from hvdcloud.node.mesh.host_key import check_host_key

if TYPE_CHECKING:
    from pathlib import Path

    from hvdcloud.cluster.model import Node
    from hvdcloud.cluster.state import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """An ed25519 key pair in OpenSSH's formats."""

    private: str
    public: str


def new_key_pair(comment: str) -> KeyPair:
    """Make a key pair. The comment ends up in the public key's line."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return KeyPair(private=private, public=f"{public} {comment}")


def write_key_pair(file: Path, pair: KeyPair) -> None:
    """The private key into `file`, the public one beside it; only their owner may read them."""
    write_private(file, pair.private)
    write_private(file.with_suffix(".pub"), pair.public + "\n")


def read_key_pair(file: Path) -> KeyPair | None:
    """What `write_key_pair` wrote; None if it does not exist or cannot be read."""
    try:
        public = read_private(file.with_suffix(".pub")).strip()
        return KeyPair(private=read_private(file), public=public)
    except OSError:
        return None


def pinned(state: ClusterState) -> dict[str, str]:
    """Each node's host key as `pin` wrote it, by the node's name."""
    try:
        lines = read_private(state.known_hosts).splitlines()
    except OSError:
        return {}
    parted = (line.partition(" ") for line in lines)
    return {names.partition(",")[0]: host_key for names, space, host_key in parted if space}


def pin(state: ClusterState, nodes: Sequence[Node]) -> None:
    """Write the host keys that were read through the provider, and an ssh configuration that insists on them.

    Raises NodeError: one of them is none.
    """
    pinned = [
        f"{node.name},[{where(node)}]:{node.port} {check_host_key(node.host_key, node=node.name)}\n" for node in nodes
    ]
    write_private(state.known_hosts, "".join(pinned))
    blocks = [
        f"Host {node.name} {node.index}\n"
        f"    HostName {where(node)}\n"
        f"    Port {node.port}\n"
        f"    HostKeyAlias {node.name}\n"
        # ssh expands what follows a %.
        + (f"    ProxyCommand {node.proxy_command.replace('%', '%%')}\n" if node.proxy_command else "")
        for node in nodes
    ]
    common = (
        "Host *\n"
        "    User root\n"
        f'    IdentityFile "{state.key_file}"\n'
        "    IdentitiesOnly yes\n"
        "    IdentityAgent none\n"
        "    ForwardAgent no\n"
        f'    UserKnownHostsFile "{state.known_hosts}"\n'
        "    GlobalKnownHostsFile none\n"
        "    StrictHostKeyChecking yes\n"
        "    PasswordAuthentication no\n"
        "    ServerAliveInterval 15\n"
    )
    write_private(state.ssh_config, "\n".join([*blocks, common]))


def where(node: Node) -> str | None:
    """The host to name to ssh; behind a proxy it is only the name under which the key is pinned."""
    return node.name if node.proxy_command else node.address


def no_key(cluster: str) -> NodeError:
    """The error of a machine that lacks a cluster's key."""
    return NodeError(
        f"the key of cluster {cluster} is not on this machine",
        hint=f"use the machine that ran `hvdcloud up`; hvdcloud down --name {cluster} works from any",
    )
