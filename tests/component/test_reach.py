"""A node that is reached through a program, as gcloud's tunnel is; where the program fails: test_ssh_proxy.py."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import psutil
import pytest

from hvdcloud.cluster.files import write_private
from hvdcloud.cluster.model import Node
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import NodeError
from hvdcloud.remote.keys import new_key_pair, pin
from hvdcloud.remote.ssh import Session
from tests.support.harness import running_children
from tests.support.vanishing import NewVm, says

# Like gcloud's tunnel: standard input made non-blocking, standard output written to until it takes everything.
_RELAY = """
import fcntl, os, select, socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as connection:
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK)
    while True:
        readable, _, _ = select.select([0, connection], [], [])
        if 0 in readable:
            data = os.read(0, 16384)
            if not data:
                break
            connection.sendall(data)
        if connection in readable:
            data = connection.recv(16384)
            if not data:
                break
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
"""
MANY = bytes(3_000_000)


def counts(channel: paramiko.Channel) -> None:
    """Says how many bytes came, and much more."""
    came = 0
    while data := channel.recv(1 << 15):
        came += len(data)
    channel.sendall(b"%d\n" % came + MANY)
    channel.send_exit_status(0)
    channel.close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    state = ClusterState("digits")
    state.make()
    write_private(state.key_file, new_key_pair("laptop").private)
    return state


@pytest.fixture
def node(new_vm: NewVm, tmp_path: Path) -> Node:
    """As a provider without addresses describes it."""
    node = new_vm({"hostname": says("digits-0\n"), "counts": counts}).node(0)
    relay = tmp_path / "relay.py"
    relay.write_text(_RELAY)
    return replace(node, address=None, proxy_command=f"{sys.executable} {relay} {node.address} {node.port}")


@pytest.fixture
def session(node: Node, state: ClusterState) -> Iterator[Session]:
    pin(state, [node])
    session = Session(node, state)
    yield session
    session.close()


def relays() -> list[psutil.Process]:
    """The proxy programs that this test started."""
    return running_children("relay.py")


def test_everything_goes_through_the_program_which_ends_with_the_session(session: Session) -> None:
    connection = session.open()
    assert connection.run("hostname", hide=True, in_stream=False).stdout == "digits-0\n"
    source, answer, _ = connection.client.exec_command("counts")
    source.write(MANY)
    source.channel.shutdown_write()
    assert len(answer.read()) == len(f"{len(MANY)}\n") + len(MANY)
    assert len(relays()) == 1
    session.close()
    assert relays() == []


def test_another_host_key_behind_the_program_ends_it_before_anything_is_sent(node: Node, state: ClusterState) -> None:
    pin(state, [replace(node, host_key=new_key_pair("other").public.rpartition(" ")[0])])
    with pytest.raises(NodeError, match="is not the pinned one; nothing was sent"):
        Session(node, state).open()
    assert relays() == []
