"""VMs that are deleted while somebody waits for them: no good-bye, no reset, nothing answers any more."""

from __future__ import annotations

import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import paramiko
import pytest

from hvdcloud.checkpoints.manifest import Manifest, log_name, manifest_name, state_name, to_json
from hvdcloud.cluster.files import write_private
from hvdcloud.cluster.model import Cluster, Leftover, Node, NodeState
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.config.model import Config
from hvdcloud.console import Console
from hvdcloud.errors import CheckpointError, HvdcloudError, NodeError
from hvdcloud.lifecycle import logs
from hvdcloud.lifecycle.context import Context
from hvdcloud.lifecycle.down import down
from hvdcloud.remote import ssh
from hvdcloud.remote.keys import new_key_pair, pin
from hvdcloud.remote.ssh import Session
from hvdcloud.runs.state import RunState
from hvdcloud.storage.open import open_bucket
from tests.support.harness import until

RUN = "20261121-101112-abcdef"
ENDED = {"run": RUN, "state": "done", "result": "succeeded", "checkpoints": {"files": 0, "complete": True}}
SOON = 15.0
"""Far below every deadline of a call, and enough for a busy machine."""


class Wire:
    """A VM's end of a connection; when the VM is gone, what is sent to it is lost, and nobody is told."""

    def __init__(self, connection: socket.socket, gone: threading.Event) -> None:
        self._connection, self._gone = connection, gone

    def recv(self, size: int) -> bytes:
        if self._gone.is_set():
            time.sleep(0.05)
            raise TimeoutError
        return self._connection.recv(size)

    def send(self, data: bytes) -> int:
        return len(data) if self._gone.is_set() else self._connection.send(data)

    def settimeout(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        if not self._gone.is_set():
            self._connection.close()

    @property
    def _closed(self) -> bool:
        """Paramiko looks at that of a socket."""
        return False


Program = Callable[[paramiko.Channel], None]


class Vm(paramiko.ServerInterface):
    """A node's sshd, with programs by the first words of the command."""

    def __init__(self, programs: dict[str, Program]) -> None:
        self._programs = programs
        self._key = new_key_pair("vm")
        self._gone = threading.Event()
        self._transports: list[paramiko.Transport] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.asked = threading.Event()
        """Somebody has started a program."""
        threading.Thread(target=self._serve, daemon=True).start()

    def node(self, index: int) -> Node:
        return Node(
            name=f"digits-{index}",
            index=index,
            id=str(index),
            state=NodeState.RUNNING,
            address="127.0.0.1",
            port=self._listener.getsockname()[1],
            host_key=self._key.public.rpartition(" ")[0],
        )

    def vanish(self) -> None:
        self._gone.set()

    def come_back(self) -> None:
        """The network, not the VM, was away; connections of before are dead."""
        self._transports.clear()
        self._gone = threading.Event()

    def close(self) -> None:
        self._gone.set()
        self._listener.close()
        for transport in self._transports:
            transport.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._gone.is_set():
                connection.close()
                continue
            transport = paramiko.Transport(Wire(connection, self._gone))
            transport.add_server_key(paramiko.Ed25519Key.from_private_key(io.StringIO(self._key.private)))
            transport.start_server(event=threading.Event(), server=self)
            self._transports.append(transport)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        program = next(run for words, run in self._programs.items() if command.decode().startswith(words))
        threading.Thread(target=self._run, args=(program, channel), daemon=True).start()
        return True

    def _run(self, program: Program, channel: paramiko.Channel) -> None:
        self.asked.set()
        program(channel)


def says(text: str, *, error: str = "", after: float = 0.0) -> Program:
    """A program that ends well."""

    def run(channel: paramiko.Channel) -> None:
        time.sleep(after)
        channel.sendall(text.encode())
        channel.sendall_stderr(error.encode())
        channel.send_exit_status(0)
        channel.close()

    return run


def goes_on(text: str = "") -> Program:
    """A program that does not end."""
    return lambda channel: channel.sendall(text.encode())


@dataclass
class Machines:
    """A provider of nodes that are there until they are not."""

    cluster_now: Cluster | None
    errors: list[HvdcloudError] = field(default_factory=list)
    """Answers that the next questions get instead."""
    destroyed: bool = False

    name = "gce"

    def cluster(self, name: str) -> Cluster | None:
        if self.errors:
            raise self.errors.pop()
        return self.cluster_now

    def host_keys(self, nodes: Sequence[Node]) -> dict[str, str]:
        return {}

    def destroy(self, name: str, **_: Any) -> Sequence[Leftover]:
        self.destroyed = True
        return []


@dataclass
class Laptop:
    """What a person has whose cluster `digits` is up."""

    folder: Path
    out: io.StringIO = field(default_factory=io.StringIO)
    err: io.StringIO = field(default_factory=io.StringIO)

    def context(self, vms: Sequence[Vm]) -> tuple[Context, Cluster, Machines]:
        nodes = [vm.node(index) for index, vm in enumerate(vms)]
        cluster = Cluster(
            name="digits",
            id="abcdef",
            owner="me",
            provider="gce",
            created=datetime.now(timezone.utc),
            expected_nodes=len(nodes),
            nodes=tuple(nodes),
            image="image",
            bucket=f"file://{self.folder}/bucket",
        )
        console = Console(out=self.out, err=self.err)
        context = Context(Config.model_validate({"name": "digits", "nodes": max(1, len(nodes))}), console)
        machines = Machines(cluster)
        context.__dict__["provider"] = machines
        context.state.make()
        context.state.save(ClusterRecord(id=cluster.id, runs=(RUN,)))
        write_private(context.state.key_file, new_key_pair("laptop").private)
        pin(context.state, nodes)
        return context, cluster, machines

    def keep(self, name: str, data: bytes) -> None:
        open_bucket(f"file://{self.folder}/bucket").write(name, data)

    def keep_manifest(self, node: int, *, complete: bool) -> None:
        manifest = Manifest(cluster="digits", run=RUN, node=node, complete=complete, files=())
        self.keep(manifest_name("digits", RUN, node), to_json(manifest))


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laptop:
    """It is quick to ask who is silent."""
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(ssh, "CONNECT_SECONDS", 6.0)
    monkeypatch.setattr(ssh, "CHECK_SECONDS", 0.2)
    monkeypatch.setattr(ssh, "ANSWER_SECONDS", 3.0)  # A busy machine takes its time too.
    monkeypatch.setattr(logs, "QUIET_SECONDS", 0.2)
    monkeypatch.setattr(logs, "ANSWER_SECONDS", 1.0)
    return Laptop(tmp_path)


@pytest.fixture
def new_vm() -> Iterator[Callable[[dict[str, Program]], Vm]]:
    vms: list[Vm] = []

    def make(programs: dict[str, Program]) -> Vm:
        vms.append(Vm(programs))
        return vms[-1]

    yield make
    for vm in vms:
        vm.close()


NewVm = Callable[[dict[str, Program]], Vm]


def when_asked(vm: Vm, act: Callable[[], None]) -> None:
    """Do something as soon as somebody waits for a program on this VM."""

    def wait() -> None:
        assert vm.asked.wait(SOON)
        act()

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.parametrize("verb", ["flush", "stop", "state"])
def test_a_call_to_a_vm_that_vanishes_does_not_last_until_its_deadline(
    laptop: Laptop, new_vm: NewVm, verb: str
) -> None:
    vm = new_vm({"hvdcloud-node": goes_on()})
    context, _, _ = laptop.context([vm])
    session = Session(vm.node(0), context.state)
    when_asked(vm, vm.vanish)
    began = time.monotonic()
    with pytest.raises(NodeError, match="connection to node digits-0 was lost"):
        session.call(verb, timeout=600)
    session.close()
    assert time.monotonic() - began < SOON


def test_a_node_that_works_for_longer_than_it_is_left_alone_is_not_lost(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node flush": says('{"runs": {}}\n', after=3.0)})
    context, _, _ = laptop.context([vm])
    session = Session(vm.node(0), context.state)
    assert session.call("flush", timeout=600) == {"runs": {}}
    session.close()


def test_down_of_nodes_that_delete_themselves_meanwhile_goes_on(laptop: Laptop, new_vm: NewVm) -> None:
    head = new_vm({"hvdcloud-node flush": goes_on()})
    worker = new_vm({"hvdcloud-node flush": says('{"runs": {}}\n')})
    context, cluster, machines = laptop.context([head, worker])
    for node in (0, 1):
        laptop.keep_manifest(node, complete=True)

    def delete() -> None:
        machines.cluster_now = replace(cluster, nodes=cluster.nodes[1:])
        head.vanish()

    when_asked(head, delete)
    began = time.monotonic()
    with context:
        down(context)
    assert machines.destroyed
    assert time.monotonic() - began < SOON


def test_down_of_nodes_that_are_all_gone_meanwhile_goes_on(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node flush": goes_on()})
    context, _, machines = laptop.context([vm])
    laptop.keep_manifest(0, complete=True)

    def delete() -> None:
        machines.cluster_now = None
        vm.vanish()

    when_asked(vm, delete)
    with context:
        down(context)
    assert machines.destroyed


def test_down_refuses_while_a_node_that_is_still_there_does_not_answer(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node flush": goes_on()})
    context, _, machines = laptop.context([vm])
    laptop.keep_manifest(0, complete=True)
    when_asked(vm, vm.vanish)
    began = time.monotonic()
    with context, pytest.raises(CheckpointError) as raised:
        down(context)
    assert "connection to node digits-0 was lost" in raised.value.details
    assert not machines.destroyed
    assert time.monotonic() - began < SOON


def test_down_refuses_where_a_zone_that_does_not_answer_may_hold_the_node(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node flush": goes_on()})
    context, cluster, machines = laptop.context([vm])
    laptop.keep_manifest(0, complete=True)

    def hide() -> None:
        machines.cluster_now = replace(cluster, nodes=(), unseen=("zone us-central1-a",))
        vm.vanish()

    when_asked(vm, hide)
    with context, pytest.raises(CheckpointError):
        down(context)
    assert not machines.destroyed


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ({"active": True}, f"run {RUN} is still active (hvdcloud stop ends it)"),
        ({"pending": ["last.pt"]}, f"{RUN}: last.pt is not in the bucket yet"),
        ({"errors": ["no space left"]}, f"{RUN}: no space left"),
    ],
)
def test_down_refuses_while_a_node_has_something_that_is_not_in_the_bucket(
    laptop: Laptop, new_vm: NewVm, report: dict[str, Any], reason: str
) -> None:
    vm = new_vm({"hvdcloud-node flush": says(json.dumps({"runs": {RUN: report}}) + "\n")})
    context, _, machines = laptop.context([vm])
    laptop.keep_manifest(0, complete=True)
    with context, pytest.raises(CheckpointError) as raised:
        down(context)
    assert raised.value.details == reason
    assert not machines.destroyed


def test_down_refuses_while_a_zone_that_does_not_answer_may_hold_the_only_node(laptop: Laptop) -> None:
    context, cluster, machines = laptop.context([])
    machines.cluster_now = replace(cluster, expected_nodes=1, unseen=("zone us-central1-a",))
    laptop.keep_manifest(0, complete=False)
    with context, pytest.raises(CheckpointError) as raised:
        down(context)
    assert "node 0 has not finished uploading" in raised.value.details
    assert not machines.destroyed


def test_down_of_a_cluster_whose_nodes_are_gone_needs_nothing_of_them(laptop: Laptop) -> None:
    context, cluster, machines = laptop.context([])
    machines.cluster_now = replace(cluster, expected_nodes=1)
    laptop.keep_manifest(0, complete=False)
    with context:
        down(context)
    assert machines.destroyed
    assert f"checkpoints of run {RUN} are in" in laptop.err.getvalue()


@pytest.mark.parametrize(
    ("of_the_head", "of_the_stopped_one", "safe"),
    [
        pytest.param(True, True, True, id="all is in the bucket"),
        pytest.param(True, False, False, id="it had not finished"),
        pytest.param(True, None, False, id="it has not said that it took part"),
        pytest.param(None, None, False, id="no node has said so"),
    ],
)
def test_down_of_a_stopped_node_asks_the_bucket_what_it_holds(
    laptop: Laptop, of_the_head: bool | None, of_the_stopped_one: bool | None, safe: bool
) -> None:
    """The head was preempted; node 1 is a machine that is switched off."""
    context, cluster, machines = laptop.context([])
    stopped = Node(name="digits-1", index=1, id="1", state=NodeState.STOPPED)
    machines.cluster_now = replace(cluster, expected_nodes=2, nodes=(stopped,))
    for index, complete in enumerate((of_the_head, of_the_stopped_one)):
        if complete is not None:
            laptop.keep_manifest(index, complete=complete)
    with context:
        if safe:
            down(context)
        else:
            with pytest.raises(CheckpointError) as raised:
                down(context)
            assert "node digits-1 is stopped: what it had not uploaded is only there" in raised.value.details
    assert machines.destroyed == safe


def test_who_follows_a_run_learns_its_end_from_the_bucket_when_the_head_vanishes(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node logs": goes_on("[0] epoch 1\n")})
    context, cluster, machines = laptop.context([vm])

    def delete() -> None:
        laptop.keep(log_name("digits", RUN), b"[0] epoch 1\n[0] epoch 2\n")
        laptop.keep(state_name("digits", RUN), json.dumps(ENDED).encode())
        machines.cluster_now = None
        vm.vanish()

    when_asked(vm, lambda: threading.Timer(0.5, delete).start())
    began = time.monotonic()
    with context:
        followed = logs.follow(context, cluster, RUN)
    assert time.monotonic() - began < SOON
    assert followed.state == RunState.from_json(ENDED)
    assert (laptop.out.getvalue(), followed.last_line) == ("[0] epoch 1\n[0] epoch 2\n", "epoch 2")


def test_who_follows_a_run_over_a_network_that_is_away_for_a_while_sees_its_end(laptop: Laptop, new_vm: NewVm) -> None:
    lines = ["[0] epoch 1\n", "[0] epoch 2\n"]

    def log(channel: paramiko.Channel) -> None:
        if lines:
            goes_on(lines.pop(0))(channel)
        if not lines:
            says("", error=json.dumps(ENDED) + "\n")(channel)

    vm = new_vm({"hvdcloud-node logs": log})
    context, cluster, machines = laptop.context([vm])
    # The provider is as far away as the nodes.
    machines.errors = [NodeError("the API is out of reach", hint="wait")]

    def cut() -> None:
        until(lambda: "epoch 1" in laptop.out.getvalue(), seconds=20, what="the first line")
        vm.vanish()
        threading.Timer(2.0, vm.come_back).start()

    when_asked(vm, lambda: threading.Thread(target=cut, daemon=True).start())
    with context:
        followed = logs.follow(context, cluster, RUN)
    assert followed.state == RunState.from_json(ENDED)
    assert laptop.out.getvalue() == "[0] epoch 1\n[0] epoch 2\n"
    assert "the API is out of reach" in laptop.err.getvalue()
    assert "connecting again" in laptop.err.getvalue()
