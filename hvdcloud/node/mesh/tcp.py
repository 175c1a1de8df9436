"""The TCP sockets of this node's processes: what they are connected to, and how to break a worker's connections.

When a node is gone, Gloo and NCCL notice it at once only where the kernel of that node closes its connections. A node
that is frozen or cut off closes nothing, and workers that were not connected to it directly wait for those that were.
Gloo then waits for its timeout, which has to be long, since it is also how long workers wait at every change of the
world for one that is slow to start; NCCL waits without limit. A broken connection is noticed at once on both sides.

Breaking another process's connections takes CAP_SYS_PTRACE (pidfd_getfd(2)), which a node's container has.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hvdcloud.node.processes import descendants

TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_PIDFD_GETFD = 438  # the same on every architecture: include/uapi/asm-generic/unistd.h
_ESTABLISHED, _LISTEN = "01", "0A"
_MAPPED = bytes(10) + b"\xff\xff"


class Socket(NamedTuple):
    """A TCP socket that is connected or listens."""

    address: str
    """Its own; of a socket of IPv6 that is connected over IPv4, the IPv4 address."""
    port: int
    peer: str | None
    """The other side's address; None: it listens."""
    inode: str


def read(tables: Iterable[str]) -> list[str]:
    """The texts of the kernel's tables, as far as they exist: without IPv6 there is one."""
    found = []
    for table in tables:
        with contextlib.suppress(OSError):
            found.append(Path(table).read_text())
    return found


def parse(table: str) -> Iterator[Socket]:
    """The connected and listening sockets of one table (proc(5)): hexadecimal, in words of the machine's byte order."""
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] in (_ESTABLISHED, _LISTEN):
            local, _, port = fields[1].rpartition(":")
            peer = _address(fields[2].rpartition(":")[0]) if fields[3] == _ESTABLISHED else None
            yield Socket(_address(local), int(port, 16), peer, fields[9] if len(fields) > 9 else "")


def callers_on(port: int, texts: Iterable[str]) -> set[str]:
    """The addresses from which connections to a local port are established, by the tables' texts."""
    return {each.peer for text in texts for each in parse(text) if each.peer is not None and each.port == port}


class OpenSockets(NamedTuple):
    """What a worker and its children have open."""

    connections: dict[str, str]
    """The peer's address by inode."""
    listens: bool
    """Whether others could connect to it, from other machines. Gloo listens as soon as it knows whom it has to meet."""


def open_sockets(worker: int, addresses: Collection[str]) -> OpenSockets:
    """The connections of a worker (process id) and its children to some of the addresses (IPv4, dotted), and whether it
    has begun to meet others."""
    found = [each for _, _, each in _sockets(worker) if each.peer is None or each.peer in addresses]
    connections = {each.inode: each.peer for each in found if each.peer is not None}
    return OpenSockets(connections, any(each.peer is None for each in found))


def disconnect(worker: int, addresses: Collection[str], *, inodes: Collection[str]) -> int:
    """Break those of a worker's connections to these addresses that have one of the inodes; returns how many.

    Raises:
        OSError: this process may not do that.
    """
    import ctypes

    broken = 0
    for pid, number, each in _sockets(worker):
        if each.inode not in inodes or each.peer not in addresses:
            continue
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                taken = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, descriptor, number, 0)
                if taken < 0:
                    error = ctypes.get_errno()
                    if error == errno.EBADF:
                        # Closed meanwhile.
                        continue
                    raise OSError(error, os.strerror(error))
            finally:
                os.close(descriptor)
            with socket.socket(fileno=taken) as connection, contextlib.suppress(OSError):
                # It may have been closed meanwhile, or become something else.
                connection.shutdown(socket.SHUT_RDWR)
                broken += 1
    return broken


class Connections:
    """The connections of this node's workers to the addresses of other nodes, and how long each has been seen."""

    def __init__(self) -> None:
        self.addresses: frozenset[str] = frozenset()
        self._since: dict[str, float] = {}
        """When each was first seen, by inode."""

    def observe(self, workers: Mapping[int, int]) -> dict[int, OpenSockets]:
        """What each worker has open. `workers`: the process id of each, by any key."""
        now = time.monotonic()
        seen = {key: open_sockets(worker, self.addresses) for key, worker in workers.items()}
        there = {inode for found in seen.values() for inode in found.connections}
        self._since = {inode: self._since.get(inode, now) for inode in there}
        return seen

    def disconnect(self, workers: Mapping[int, int], *, older_than: float) -> tuple[int, str]:
        """Break connections, so that workers notice a loss at once. Younger ones (in seconds) stay: workers may have
        noticed the loss by themselves, and be connecting again already. Returns how many, and why it may not."""
        self.observe(workers)
        since = time.monotonic() - older_than
        old = {inode for inode, first in self._since.items() if first <= since}
        broken, error = 0, ""
        for worker in workers.values():
            try:
                broken += disconnect(worker, self.addresses, inodes=old)
            except OSError as refused:
                error = refused.strerror or str(refused)
        return broken, error


def _sockets(worker: int) -> Iterator[tuple[int, int, Socket]]:
    """Process id, descriptor and socket of all that is connected or listens for other machines, over IPv4."""
    holders: dict[str, tuple[int, int]] = {}
    for pid in (worker, *(each.pid for each in descendants(worker))):
        # A process or a descriptor may be gone by now.
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    kind, _, inode = os.readlink(entry.path).partition(":")
                    if kind == "socket":
                        # Of those that share it, the worker itself: it lives longest.
                        holders.setdefault(inode[1:-1], (pid, int(entry.name)))
    for table in TABLES:
        # The kernel takes milliseconds for a table, since it goes through all that it has room for.
        for text in read([table.replace("self", str(worker))] if holders else []):
            for each in parse(text):
                holder = holders.pop(each.inode, None)
                here_alone = each.peer is None and (":" in each.address or each.address.startswith("127."))
                if holder is not None and not here_alone:
                    yield *holder, each


def _address(text: str) -> str:
    raw = b"".join(struct.pack("=I", int(text[start : start + 8], 16)) for start in range(0, len(text), 8))
    raw = raw.removeprefix(_MAPPED)
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)
