"""Further names of this cluster's nodes, on the head alone: Horovod knows a node that returns by a new one.

A name has a line in /etc/hosts, for Horovod, and an entry in ssh's configuration, which leads to the node's own name
and thus to its pinned host key and to the connection that the supervisor keeps to it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hvdcloud.node import paths
from hvdcloud.node.mesh import hosts

_BLOCK = "other names"


def ssh_file() -> Path:
    """What ssh's configuration includes (join.py)."""
    return paths.ssh_dir() / "aliases"


def write(names: Mapping[str, str]) -> None:
    """Make these the further names, in place of earlier ones; a node that cannot be resolved gets none.

    Args:
        names: the node's own name, by alias.

    Raises:
        OSError: a file cannot be written.
    """
    found = {}
    for alias, name in names.items():
        # Without it, Horovod's ssh fails, which is what becomes of a node that has just gone.
        with contextlib.suppress(socket.gaierror):
            found[alias] = socket.gethostbyname(name)
    hosts.write(found, block=_BLOCK)
    ssh_file().parent.mkdir(parents=True, exist_ok=True)
    temporary = ssh_file().with_name(f".aliases.{os.getpid()}")
    temporary.write_text("".join(f"Host {alias}\n    HostName {name}\n" for alias, name in names.items()))
    temporary.replace(ssh_file())


def forget_connection(node: str) -> None:
    """Remove the socket of a shared connection to a node that is gone; ssh would not replace it."""
    shown = subprocess.run(["ssh", "-G", node], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    for line in shown.stdout.splitlines():
        key, _, value = line.partition(" ")
        if key == "controlpath":
            Path(value).unlink(missing_ok=True)
