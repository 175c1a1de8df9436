"""`join`: makes this node a member of its cluster, with keys and pinned peers, and tells what it has."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from typing import Any

from hvdcloud.errors import UsageError
from hvdcloud.node import machine, program
from hvdcloud.node.files import replace
from hvdcloud.node.mesh import hosts as hosts_file
from hvdcloud.node.mesh import ssh
from hvdcloud.node.mesh.host_key import check_host_key, is_host
from hvdcloud.node.mesh.nodes import Peer, mesh_interface, remember
from hvdcloud.storage.threads import parallel

CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 0.5


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Write the mesh's key, peers and ssh configuration; may be repeated with other peers.

    Args:
        request: `private_key` and `public_key` of the mesh, and `hosts`, the head first; `check`: whether to try to
            reach them.

    Returns:
        the `version` of this node's program, and what it has: `cores`, `gpus`, and the `interface` that leads to the
        others; with `check`, `unreached`: why, by name of each node whose sshd does not answer it.

    Raises:
        UsageError: the request lacks something.
        NodeError: a peer's host key is none, or its address cannot be resolved.
    """
    try:
        private_key, public_key = str(request["private_key"]), str(request["public_key"]).strip()
        hosts = [Peer(str(h["name"]), str(h["address"]), int(h["port"]), str(h["host_key"])) for h in request["hosts"]]
        if any(not (is_host(host.name) and is_host(host.address) and 0 < host.port < 1 << 16) for host in hosts):
            raise ValueError("a host's name, address or port is none")
        if "\n" in public_key:
            raise ValueError("the public key is more than one line")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"join: {type(error).__name__}: {error}", hint="hvdcloud up again") from error
    for host in hosts:
        check_host_key(host.host_key, node=host.name)
    found = hosts_file.resolve({host.name: host.address for host in hosts})
    hosts_file.write(found)
    key = ssh.key_file()
    key.parent.mkdir(parents=True, exist_ok=True)
    key.parent.chmod(0o700)
    replace(key, private_key if private_key.endswith("\n") else private_key + "\n", mode=0o600)
    replace(key.with_name(f"{key.name}.pub"), public_key + "\n")
    authorized = key.with_name("authorized_keys")
    lines = authorized.read_text().splitlines() if authorized.exists() else []
    if public_key not in lines:
        replace(authorized, "".join(f"{line}\n" for line in [*lines, public_key]), mode=0o600)
    replace(ssh.known_hosts_file(), "".join(_pin(host) for host in hosts), mode=0o600)
    replace(key.with_name("config"), ssh.config({host.name: host.port for host in hosts}), mode=0o600)
    resolved = [host._replace(address=found.get(host.name) or _address(host.name)) for host in hosts]
    remember(resolved)
    own = machine.name()
    answer = {"version": program.version(), "gpus": machine.gpus(), "interface": mesh_interface()}
    if not request.get("check"):
        return answer
    return {**answer, "unreached": _unreached([host for host in resolved if host.name != own])}


def _address(name: str) -> str:
    """The IPv4 address of a name; the name, if nobody knows it."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def _unreached(peers: Sequence[Peer]) -> dict[str, str]:
    """Why, by name, those whose sshd does not answer this node do not."""

    deadline = time.monotonic() + CONNECT_SECONDS

    def problem(peer: Peer) -> str:
        while True:
            left = max(1.0, deadline - time.monotonic())
            try:
                with socket.create_connection((peer.address, peer.port), timeout=left) as connection:
                    said = connection.recv(4)
                    why = "" if said == b"SSH-" else "another program answers" if said else "it closes the connection"
            except OSError as error:
                why = error.strerror or str(error)
            # One whose sshd is full or starts again takes the next connection.
            if not why or time.monotonic() + _PAUSE_SECONDS > deadline:
                return why
            time.sleep(_PAUSE_SECONDS)

    outcomes = parallel(peers, problem, workers=len(peers))
    return {outcome.item.name: outcome.result for outcome in outcomes if outcome.result}


def _pin(host: Peer) -> str:
    names = dict.fromkeys([host.address, host.name])
    if host.port != 22:
        names = dict.fromkeys(f"[{each}]:{host.port}" for each in names)
    return f"{','.join(names)} {host.host_key}\n"
