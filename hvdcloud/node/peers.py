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

from hvdcloud.node.processes import family

_PIDFD_GETFD = 438  # the same on every architecture: include/uapi/asm-generic/unistd.h
_ESTABLISHED = "01"
_MAPPED = "0000000000000000FFFF0000"


def connected(worker: int, addresses: Collection[str]) -> dict[str, str]:
    """The connections of a worker and its children to some of the addresses: the peer's address by inode.

    Args:
        worker: process id.
        addresses: IPv4, dotted.
    """
    return {inode: address for _, _, inode, address in _connections(worker, addresses)}


def disconnect(worker: int, addresses: Collection[str], *, inodes: Collection[str]) -> int:
    """Break those of a worker's connections to these addresses that have one of the inodes; returns how many.

    Raises:
        OSError: this process may not do that.
    """
    broken = 0
    for pid, number, inode, _ in _connections(worker, addresses):
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


def _connections(worker: int, addresses: Collection[str]) -> Iterator[tuple[int, int, str, str]]:
    """Process id, descriptor, inode and peer of every established TCP connection."""
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
    """Inode and peer's IPv4 address of every established TCP connection in a process's network (proc(5))."""
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            remote = fields[2].partition(":")[0].removeprefix(_MAPPED)
            if fields[3] == _ESTABLISHED and len(remote) == 8:
                yield fields[9], socket.inet_ntoa(struct.pack("<I", int(remote, 16)))
