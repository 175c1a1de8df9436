"""The names of a cluster's nodes in /etc/hosts, where their addresses have other names.

On Compute Engine a node is found by its internal address, and a host of provider ssh perhaps by a DNS name, while
horovodrun, ssh and Gloo are given the node's name. With it in this file, no name service can fail in a run's middle.

On the head of an elastic run, nodes have aliases as well: Horovod knows a node that returns by another name. An alias
has a line in /etc/hosts, for Horovod, and an entry in ssh's configuration, which leads to the node's own name and thus
to its pinned host key and to the connection that the supervisor keeps to it.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping

from hvdcloud.errors import NodeError
from hvdcloud.node import paths
from hvdcloud.node.files import replace
from hvdcloud.node.mesh import ssh
from hvdcloud.node.mesh.nodes import known
from hvdcloud.node.paths import SSH_PORT

RESOLVE_SECONDS = 20.0
"""How long names of a cluster that has just started may be unknown to the name service."""
_NODES = "the nodes of this cluster"
_ALIASES = "other names"


def resolve(addresses: Mapping[str, str], *, seconds: float = RESOLVE_SECONDS) -> dict[str, str]:
    """The IPv4 address of every node whose address differs from its name.

    Args:
        addresses: of each node, by its name: an IP address or a DNS name.

    Raises:
        NodeError: the name service does not know one of them within `seconds`.
    """
    found, deadline = {}, time.monotonic() + seconds
    for name, address in addresses.items():
        while address != name and name not in found:
            try:
                found[name] = socket.gethostbyname(address)
            except OSError as error:
                if time.monotonic() >= deadline:
                    hint = "hvdcloud down, then up again; the nodes need one network and its internal DNS"
                    why = f"the peer {name} cannot be found: {address}: {error.strerror or error}"
                    raise NodeError(why, hint=hint) from error
                time.sleep(0.5)
    return found


def write(found: Mapping[str, str], *, block: str = _NODES) -> None:
    """Make these IPv4 addresses by node the lines of one of hvdcloud's blocks in /etc/hosts, in place of earlier ones.

    They come first, since the first line with a name counts. The file is written in place: in a container it is a
    mount, which cannot be replaced.
    """
    first_line, last_line = f"# hvdcloud: {block}\n", f"# hvdcloud: end of {block}\n"
    file = paths.root() / "etc/hosts"
    old = file.read_text() if file.exists() else ""
    head, first, rest = old.partition(first_line)
    others = head + rest.partition(last_line)[2] if first else old
    lines = "".join(f"{address} {name}\n" for name, address in found.items())
    new = f"{first_line}{lines}{last_line}{others}" if lines else others
    if new != old:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(new)


def write_aliases(names: Mapping[str, str]) -> None:
    """Make these the aliases, in place of earlier ones; a node that cannot be resolved gets none.

    Args:
        names: the node's own name, by alias.

    Raises:
        OSError: a file cannot be written.
    """
    found = {}
    for alias, name in names.items():
        # Without it, Horovod's ssh fails, as it does for every node that is just lost.
        with contextlib.suppress(socket.gaierror):
            found[alias] = socket.gethostbyname(name)
    write(found, block=_ALIASES)
    ports = {peer.name: peer.port for peer in known()}
    blocks = (
        f"Host {alias}\n    HostName {name}\n    Port {ports.get(name, SSH_PORT)}\n" for alias, name in names.items()
    )
    replace(ssh.aliases_file(), "".join(blocks))
