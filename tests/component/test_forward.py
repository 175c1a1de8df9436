"""Ports of this machine that lead to a node's, while the connection to it comes and goes."""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from hvdcloud.errors import NodeError, UsageError
from hvdcloud.lifecycle.ssh import find_node
from hvdcloud.remote import forward, ssh
from hvdcloud.remote.forward import Forwarder, Ports
from hvdcloud.remote.ssh import Session
from tests.standins.registry import free_port
from tests.support.harness import until
from tests.support.http_server import Reply, answering
from tests.support.vanishing import Laptop, Machines, NewVm, Vm

PAGE = b"<title>TensorBoard</title>" * 10_000
SECONDS = 30.0


@pytest.fixture
def board() -> Iterator[int]:
    """The port of a program that the node shows pages with."""
    with answering(lambda _: Reply(PAGE)) as url:
        yield int(url.rpartition(":")[2])


class Forwarded:
    """A node's port 6006 at a port of this machine."""

    def __init__(self, laptop: Laptop, vm: Vm) -> None:
        self.vm, self.port, self.said = vm, free_port(), list[str]()
        self.machines: Machines
        context, _, self.machines = laptop.context([vm])
        self.ports = Ports(local=self.port, remote=6006)
        self.forwarder = Forwarder(
            [self.ports], find=lambda: Session(find_node(context, "0"), context.state), say=self.said.append
        )

    def page(self) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=SECONDS) as answer:
            page: bytes = answer.read()
            return page


Start = Callable[[], Forwarded]


@pytest.fixture
def started(laptop: Laptop, new_vm: NewVm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    monkeypatch.setattr(forward, "CHECK_SECONDS", 0.1)
    monkeypatch.setattr(forward, "ANSWER_SECONDS", 1.0)
    with contextlib.ExitStack() as stack:

        def start() -> Forwarded:
            forwarded = Forwarded(laptop, new_vm({}))
            stack.callback(forwarded.forwarder.close)
            forwarded.forwarder.start()
            return forwarded

        yield start


def test_programs_of_this_machine_reach_the_nodes_port_side_by_side(started: Start, board: int) -> None:
    forwarded = started()
    forwarded.vm.services[6006] = board
    pages: list[bytes] = []
    readers = [threading.Thread(target=lambda: pages.append(forwarded.page())) for _ in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(SECONDS)
    assert pages == [PAGE] * 8
    assert forwarded.vm.connections == 1
    assert forwarded.said == []


def test_other_machines_cannot_use_the_port(started: Start) -> None:
    forwarded = started()
    # All of 127.0.0.0/8 is this machine's, and only one address of it listens.
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", forwarded.port), timeout=SECONDS)


def test_a_connection_that_broke_is_made_again(started: Start, board: int) -> None:
    forwarded = started()
    forwarded.vm.services[6006] = board
    assert forwarded.page() == PAGE
    forwarded.vm.cut()
    assert forwarded.page() == PAGE


def test_a_node_that_does_not_answer_ends_what_waits_and_is_reached_again_when_it_does(
    started: Start, board: int
) -> None:
    forwarded = started()
    with socket.create_server(("127.0.0.1", 0)) as program:
        program.settimeout(SECONDS)
        forwarded.vm.services[6006] = program.getsockname()[1]
        with socket.create_connection(("127.0.0.1", forwarded.port), timeout=SECONDS) as debugger:
            other_end, _ = program.accept()
            with other_end:
                forwarded.vm.vanish()
                assert debugger.recv(1) == b""
    until(lambda: forwarded.said, seconds=SECONDS, what="a word about the loss")
    assert "does not answer any more; it is tried again" in forwarded.said[0]
    forwarded.vm.come_back()
    forwarded.vm.services[6006] = board
    assert forwarded.page() == PAGE
    assert forwarded.said[1:] == ["connected to digits-0 again"]


def test_a_port_on_which_nothing_listens_is_named_once(started: Start, board: int) -> None:
    forwarded = started()
    for _ in range(2):
        with pytest.raises((urllib.error.URLError, OSError)):
            forwarded.page()
    assert forwarded.said == ["nothing listens on port 6006 of digits-0 yet"]
    opener = threading.Thread(target=lambda: forwarded.forwarder.wait_for(forwarded.ports, seconds=SECONDS, every=0.05))
    opener.start()
    forwarded.vm.services[6006] = board
    opener.join(SECONDS)
    assert not opener.is_alive()
    assert forwarded.page() == PAGE
    assert forwarded.said[1:] == ["port 6006 of digits-0 answers now"]


def test_a_connection_that_nobody_uses_does_not_keep_the_node_from_being_idle(
    started: Start, board: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "UNUSED_SECONDS", 0.2)
    forwarded = started()
    forwarded.vm.services[6006] = board
    until(lambda: forwarded.vm.connections == 0, seconds=SECONDS, what="the end of the connection")
    assert forwarded.page() == PAGE
    assert forwarded.said == []


def test_a_cluster_that_was_deleted_ends_it(started: Start) -> None:
    forwarded = started()
    forwarded.machines.cluster_now = None
    forwarded.vm.close()
    forwarded.vm.cut()
    with contextlib.suppress(OSError):
        forwarded.page()
    with pytest.raises(UsageError, match="there is no cluster digits"):
        forwarded.forwarder.wait()


def test_a_node_that_cannot_be_reached_at_first_is_an_error(laptop: Laptop, new_vm: NewVm) -> None:
    forwarded = Forwarded(laptop, new_vm({}))
    forwarded.vm.close()
    with contextlib.closing(forwarded.forwarder), pytest.raises(NodeError, match="node digits-0 does not answer"):
        forwarded.forwarder.start()


def test_a_local_port_that_is_taken_is_named_with_the_form_to_choose_another(laptop: Laptop, new_vm: NewVm) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        mine = free_port()
        with pytest.raises(
            UsageError, match=f"port {taken} of this machine cannot be opened: Address already"
        ) as raised:
            forward.listen([Ports(local=mine, remote=1), Ports(local=taken, remote=6006)])
        assert raised.value.hint.endswith(":6006")
    # Those that were free are free again.
    socket.create_server(("127.0.0.1", mine)).close()


def test_dialling_says_when_the_connection_is_lost(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({})
    context, _, _ = laptop.context([vm])
    session = Session(vm.node(0), context.state)
    session.open()
    with pytest.raises(ssh.NothingListensError, match="nothing listens on port 6006 of node digits-0"):
        session.dial(6006)
    vm.vanish()
    with pytest.raises(NodeError, match="connection to node digits-0 was lost"):
        session.dial(6006, within=0.2)
    session.close()
