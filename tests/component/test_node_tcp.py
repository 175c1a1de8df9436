"""To whom a process is connected, and how its connections are broken: real sockets between real processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hvdcloud.node.mesh import tcp
from tests.support.harness import until

HERE, OTHER = "127.77.0.1", "127.77.0.2"
_HOLD = """
import os, socket, sys, time
link = socket.create_connection((sys.argv[1], int(sys.argv[2])), source_address=(sys.argv[3], 0))
if "child" in sys.argv:
    # The connection is the child's alone, as with a shell that starts Python.
    if os.fork():
        link.close()
        os.wait()
        sys.exit()
print("connected", flush=True)
print("broken" if link.recv(1) == b"" else "data", flush=True)
"""


@contextmanager
def holder(listener: socket.socket, *how: str) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A process that is connected to us, and our end of its connection."""
    words = [sys.executable, "-c", _HOLD, OTHER, str(listener.getsockname()[1]), HERE, *how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        link, _ = listener.accept()
        with link:
            assert process.stdout
            assert process.stdout.readline() == "connected\n"
            yield process, link
        process.kill()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((OTHER, 0)) as server:
        server.settimeout(10)
        yield server


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline()


def broken(pid: int, addresses: set[str]) -> int:
    """Break all that a process has to these addresses."""
    return tcp.disconnect(pid, addresses, inodes=tcp.open_sockets(pid, addresses).connections)


@pytest.mark.parametrize("how", ["self", "child"])
def test_a_connection_of_a_worker_or_its_children_is_seen_and_broken(listener: socket.socket, how: str) -> None:
    with holder(listener, how) as (process, link):
        assert set(tcp.open_sockets(process.pid, {OTHER, "127.77.0.3"}).connections.values()) == {OTHER}

        assert broken(process.pid, {OTHER}) == 1

        assert read_line(process) == "broken\n"
        link.settimeout(10)
        assert link.recv(1) == b""


def test_other_connections_stay_as_they_are(listener: socket.socket) -> None:
    with holder(listener) as (process, link):
        assert tcp.open_sockets(process.pid, {"127.77.0.3"}).connections == {}
        assert broken(process.pid, {"127.77.0.3"}) == 0

        link.send(b"x")
        assert read_line(process) == "data\n"


def test_a_connection_over_an_ipv6_socket_counts_with_its_ipv4_address() -> None:
    with socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        server.settimeout(10)
        with holder(server) as (process, link):
            # NCCL listens on such sockets: our own end is one of IPv6, with a mapped address.
            assert set(tcp.open_sockets(os.getpid(), {HERE}).connections.values()) == {HERE}
            assert broken(os.getpid(), {HERE}) >= 1
            assert read_line(process) == "broken\n"
            assert link.fileno() >= 0


def test_a_connection_that_is_closed_is_none(listener: socket.socket) -> None:
    with holder(listener) as (process, link):
        link.shutdown(socket.SHUT_RDWR)
        assert read_line(process) == "broken\n"
        until(
            lambda: not tcp.open_sockets(process.pid, {OTHER}).connections, seconds=5, what="the end of the connection"
        )
        assert broken(process.pid, {OTHER}) == 0


def test_a_process_that_is_gone_has_none() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        assert tcp.open_sockets(process.pid, {OTHER}).connections == {}
        assert broken(process.pid, {OTHER}) == 0


@pytest.mark.parametrize(("address", "seen"), [("0.0.0.0", True), ("127.0.0.1", False)])
def test_a_worker_that_listens_for_other_machines_is_told_from_one_that_does_not(address: str, seen: bool) -> None:
    with socket.create_server((address, 0)) as server:
        words = [sys.executable, "-c", "print(flush=True); input()"]
        handles = [(), (server.fileno(),)]
        for handed in handles:
            with subprocess.Popen(
                words, pass_fds=handed, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as process:
                assert read_line(process) == "\n"
                assert tcp.open_sockets(process.pid, {OTHER}) == ({}, seen and bool(handed))
                process.communicate("\n")
