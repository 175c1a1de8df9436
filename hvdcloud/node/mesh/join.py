"""`join`: make this node a member of its cluster: keys, pinned peers, and what it has to offer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.node.boot import activity
from hvdcloud.node.boot.machine import cores, gpus, mesh_interface, name
from hvdcloud.node.files import read_json, write_json
from hvdcloud.node.mesh import aliases
from hvdcloud.node.mesh import hosts as hosts_file
from hvdcloud.node.paths import SSH_PORT, SSH_SOCKETS, peers_file, ssh_dir, volatile_dir

# Keepalives: without them Horovod waits for ever for the ssh of a frozen node. ControlPath lets the ssh calls of
# horovodrun and mpirun ride on the connection of the supervisor's lease (lease.py), which is the only one to open such
# a socket: while a run is on, and without a handshake of some 100 ms each.
_CONFIG = """\
Include {aliases}
Host *
    Port {port}
    User root
    IdentityFile {key}
    IdentitiesOnly yes
    BatchMode yes
    StrictHostKeyChecking yes
    UserKnownHostsFile {known_hosts}
    GlobalKnownHostsFile /dev/null
    CheckHostIP no
    GSSAPIAuthentication no
    ConnectTimeout 10
    ServerAliveInterval 5
    ServerAliveCountMax 3
    ControlPath {sockets}%C
"""


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Write the mesh's key, peers and ssh configuration; may be repeated with other peers.

    Raises:
        UsageError: the request lacks something.
        NodeError: a peer's address cannot be resolved.
    """
    try:
        private_key, public_key = str(request["private_key"]), str(request["public_key"]).strip()
        hosts = [(str(h["name"]), str(h["address"]), int(h["port"]), str(h["host_key"])) for h in request["hosts"]]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"join: {type(error).__name__}: {error}", hint="hvdcloud up again") from error
    found = hosts_file.resolve({host: address for host, address, _, _ in hosts})
    hosts_file.write(found)
    folder = ssh_dir()
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    key = folder / "id_ed25519"
    _write(key, private_key if private_key.endswith("\n") else private_key + "\n", 0o600)
    _write(folder / "id_ed25519.pub", public_key + "\n", 0o644)
    authorized = folder / "authorized_keys"
    lines = authorized.read_text().splitlines() if authorized.exists() else []
    if public_key not in lines:
        _write(authorized, "".join(f"{line}\n" for line in [*lines, public_key]), 0o600)
    _write(folder / "known_hosts", "".join(_pin(*host) for host in hosts), 0o600)
    _write(
        folder / "config",
        _CONFIG.format(
            port=SSH_PORT,
            key=key,
            known_hosts=folder / "known_hosts",
            aliases=aliases.ssh_file(),
            sockets=volatile_dir() / SSH_SOCKETS,
        ),
        0o600,
    )
    # With addresses that are resolved: a name of a VM that is gone could not be any more.
    keys = ("name", "address", "port", "host_key")
    peers = [(host, found.get(host, address), port, host_key) for host, address, port, host_key in hosts]
    write_json(peers_file(), {"hosts": [dict(zip(keys, peer, strict=True)) for peer in peers]})
    activity.remember_mesh([host for host, _, _, _ in hosts], found)
    own = name()
    return {
        "cores": cores(),
        "gpus": gpus(),
        "interface": mesh_interface([found.get(host, address) for host, address, _, _ in hosts if host != own]),
    }


def peers() -> list[dict[str, Any]]:
    """The nodes as `main` was told of them, with IP addresses; empty before."""
    found = (read_json(peers_file()) or {}).get("hosts")
    return list(found) if isinstance(found, list) else []


def _pin(host: str, address: str, port: int, host_key: str) -> str:
    names = dict.fromkeys([address, host])
    if port != 22:
        names = dict.fromkeys(f"[{each}]:{port}" for each in names)
    return f"{','.join(names)} {host_key.strip()}\n"


def _write(path: Path, text: str, mode: int) -> None:
    """Replace a file; it never exists with looser permissions than `mode`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    temporary.replace(path)
