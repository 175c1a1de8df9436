"""A real node that says to a metadata server that it is ready, and whose sshd is reached through a program."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvdcloud.cluster.files import write_private
from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import NodeError
from hvdcloud.remote.keys import new_key_pair, pin
from hvdcloud.remote.ssh import Session
from tests.support.harness import running_children
from tests.support.reached_machine import Machine, running_machine

pytestmark = pytest.mark.engine

NAME = "t-reach-0"

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


@pytest.fixture(scope="module")
def machine(engine: Any, image: str) -> Iterator[Machine]:
    """Nothing but the relay knows its address."""
    with running_machine(engine, image, NAME) as machine:
        yield machine


@pytest.fixture
def state(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    state = ClusterState("t-reach")
    state.make()
    write_private(state.key_file, machine.key)
    return state


@pytest.fixture
def node(machine: Machine, state: ClusterState, tmp_path: Path) -> Node:
    """As a provider without addresses describes it; its host key is pinned."""
    relay = tmp_path / "relay.py"
    relay.write_text(_RELAY)
    node = Node(
        name=NAME,
        index=0,
        id=machine.container.id,
        state=NodeState.RUNNING,
        host_key=machine.status["host_key"],
        proxy_command=f"{sys.executable} {relay} {machine.address} 2222",
    )
    pin(state, [node])
    return node


@pytest.fixture
def session(node: Node, state: ClusterState) -> Iterator[Session]:
    session = Session(node, state)
    yield session
    session.close()


def relays() -> list[psutil.Process]:
    """The proxy programs that this test started."""
    return running_children("relay.py")


def test_the_host_key_that_is_pinned_comes_from_the_metadata_server(machine: Machine) -> None:
    printed = [line.partition(" ")[2] for line in machine.container.logs(stderr=False).decode().splitlines()]
    assert [json.loads(line) for line in printed] == machine.metadata.taken
    assert [status["status"] for status in machine.metadata.taken] == ["starting", "ready"]
    assert machine.status["host_key"].startswith("ssh-ed25519 ")


def test_sessions_do_not_see_the_metadata_server(session: Session) -> None:
    assert "HVDCLOUD_" not in session.open().run("env", hide=True, in_stream=False).stdout


def test_everything_goes_through_the_program_which_ends_with_the_session(session: Session) -> None:
    connection = session.open()
    assert connection.run("hostname", hide=True, in_stream=False).stdout == f"{NAME}\n"
    source, answer, _ = connection.client.exec_command("wc -c; head -c 20000000 /dev/zero")
    source.write(b"x" * 5_000_000)
    source.channel.shutdown_write()
    assert len(answer.read()) == len("5000000\n") + 20_000_000
    assert len(relays()) == 1
    session.close()
    assert relays() == []


def test_another_host_key_behind_the_program_ends_it_before_anything_is_sent(node: Node, state: ClusterState) -> None:
    pin(state, [replace(node, host_key=new_key_pair("other").public.rpartition(" ")[0])])
    with pytest.raises(NodeError, match="is not the pinned one; nothing was sent"):
        Session(node, state).open()
    assert relays() == []
