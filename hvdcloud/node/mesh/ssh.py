"""ssh to the other nodes of the cluster: its configuration, and the command lines that run the node program there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hvdcloud.node.paths import SSH_PORT, ssh_dir

NODE_PROGRAM = "hvdcloud-node"
RECONNECT_SECONDS = 2
"""How long to try to reach a node that may be gone."""
FAILED = 255
"""ssh's exit code where the connection failed, not the command."""

# Keepalives: without them Horovod waits without limit for the ssh of a frozen node.
_CONFIG = """\
Include {aliases}
{ports}Host *
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
"""


def key_file() -> Path:
    """The private key of the cluster's nodes; the public one is beside it."""
    return ssh_dir() / "id_ed25519"


def known_hosts_file() -> Path:
    """The pinned host keys of the cluster's nodes."""
    return ssh_dir() / "known_hosts"


def aliases_file() -> Path:
    """Further names of nodes (hosts.py), which the configuration includes."""
    return ssh_dir() / "aliases"


def config(ports: Mapping[str, int]) -> str:
    """The text of ssh's configuration file; `ports`: of each node's sshd, by the node's name."""
    others = {name: port for name, port in ports.items() if port != SSH_PORT}
    blocks = "".join(f"Host {name}\n    Port {port}\n" for name, port in others.items())
    files = {"key": key_file(), "known_hosts": known_hosts_file(), "aliases": aliases_file()}
    return _CONFIG.format(port=SSH_PORT, ports=blocks, **files)


def node_command(
    node: str, command: str, *, connect_seconds: float | None = RECONNECT_SECONDS, seconds: float | None = None
) -> list[str]:
    """The command line that runs the node program on another node, and ends it after that many seconds (None: never).

    Args:
        command: what follows the node program's name, quoted for a shell.
        connect_seconds: how long to try to connect; None: as long as ssh's configuration says.
    """
    limit = () if seconds is None else ("timeout", "--kill-after=5", f"{seconds:.0f}")
    # A node that is slow or full once is not lost.
    tried = "ConnectionAttempts=3" if connect_seconds is None else f"ConnectTimeout={connect_seconds:.0f}"
    options = ("-o", tried)
    return [*limit, "ssh", "-T", *options, node, f"{NODE_PROGRAM} {command}"]
