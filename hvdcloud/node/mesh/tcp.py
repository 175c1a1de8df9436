"""To which other nodes a worker is connected, and how to break these connections.

When a node is gone, Gloo and NCCL notice it at once only where the kernel of that node closes its connections. A node
that is frozen or cut off closes nothing, and workers that were not connected to it directly wait for those that were.
Gloo then waits for its timeout, which has to be long, since it is also how long workers wait at every change of the
world for one that is slow to start; NCCL waits for ever. Broken connections are noticed at once by everybody.

Breaking another process's connections takes CAP_SYS_PTRACE (pidfd_getfd(2)), which a node's container has.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from hvdcloud.node.run.processes import family

_PIDFD_GETFD = 438  # the same on every architecture: include/uapi/asm-generic/unistd.h
_ESTABLISHED = "01"
_LISTEN = "0A"
_LISTENS = "listens"
_MAPPED = "0000000000000000FFFF0000"


class Look(NamedTuple):
    """What a worker and its children have open."""

    connections: dict[str, str]
    """The peer's address by inode."""
    listens: bool
    """Whether others could connect to it, from other machines. Gloo listens as soon as it knows whom it has to meet."""


def look(worker: int, addresses: Collection[str]) -> Look:
    """The connections of a worker and its children to some of the addresses, and whether it has begun to meet others.

    Args:
        worker: process id.
        addresses: IPv4, dotted.
    """
    sockets = {inode: peer for _, _, inode, peer in _sockets(worker, {*addresses, _LISTENS})}
    return Look({inode: peer for inode, peer in sockets.items() if peer != _LISTENS}, _LISTENS in sockets.values())


def disconnect(worker: int, addresses: Collection[str], *, inodes: Collection[str]) -> int:
    """Break those of a worker's connections to these addresses that have one of the inodes; returns how many.

    Raises:
        OSError: this process may not do that.
    """
    broken = 0
    for pid, number, inode, _ in _sockets(worker, addresses):
        if inode not in inodes:
            continue
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                taken = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, descriptor, number, 0)
                if taken < 0:
                    error = ctypes.get_errno()
                    if error == errno.EBADF:
                        # Closed since we looked.
                        continue
                    raise OSError(error, os.strerror(error))
            finally:
                os.close(descriptor)
            with socket.socket(fileno=taken) as connection, contextlib.suppress(OSError):
                # It may have been closed, or become something else, since we looked.
                connection.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


def _sockets(worker: int, addresses: Collection[str]) -> Iterator[tuple[int, int, str, str]]:
    """Process id, descriptor, inode and peer of every TCP socket that is connected to one of these, or listens."""
    peers = {inode: peer for inode, peer in _table(worker) if peer in addresses}
    for pid in family(worker):
        try:
            numbers = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - names only, the fastest way
        except OSError:
            continue
        for number in numbers:
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 - the text, not a path
                inode = target.removeprefix("socket:[").removesuffix("]")
                if peer := peers.get(inode):
                    yield pid, int(number), inode, peer


def _table(pid: int) -> Iterator[tuple[str, str]]:
    """Inode and peer's IPv4 address of every TCP socket in a process's network that is connected, or listens (proc(5)).

    What listens on the loopback interface alone does not count.
    """
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            local, remote = (field.partition(":")[0].removeprefix(_MAPPED) for field in fields[1:3])
            if fields[3] == _ESTABLISHED and len(remote) == 8:
                yield fields[9], _dotted(remote)
            elif fields[3] == _LISTEN and len(local) == 8 and not _dotted(local).startswith("127."):
                yield fields[9], _LISTENS


def _dotted(address: str) -> str:
    return socket.inet_ntoa(struct.pack("<I", int(address, 16)))
