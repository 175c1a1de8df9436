"""VMs that answer over SSH until they vanish, and a laptop that has a cluster of them."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import paramiko

from hvdcloud.checkpoints.manifest import Manifest, manifest_name, to_json
from hvdcloud.cluster.files import write_private
from hvdcloud.cluster.model import Cluster, Leftover, Node, NodeState
from hvdcloud.cluster.record import ClusterRecord
from hvdcloud.config.model import Config
from hvdcloud.console import Console
from hvdcloud.lifecycle.context import Context
from hvdcloud.node import program
from hvdcloud.providers.base import NodeBucket
from hvdcloud.remote.keys import new_key_pair, pin
from hvdcloud.storage.open import open_bucket

RUN = "20261121-101112-abcdef"


class Wire:
    """A VM's end of a connection; when the VM is gone, what is sent to it is lost without an error."""

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


class Server(paramiko.Transport):
    """Starts a program after its request is answered, as OpenSSH does: a channel that closes before is a refusal."""

    begin: Callable[[], None] | None = None

    def _send_user_message(self, data: paramiko.Message) -> None:
        super()._send_user_message(data)  # type: ignore[misc]  # types-paramiko leaves it out.
        if threading.current_thread() is self and self.begin is not None:
            begin, self.begin = self.begin, None
            begin()


class Vm(paramiko.ServerInterface):
    """A node's sshd, with programs by the first words of the command."""

    def __init__(self, programs: dict[str, Program]) -> None:
        self.programs = programs
        self._key = new_key_pair("vm")
        self._gone = threading.Event()
        self._transports: list[paramiko.Transport] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.asked = threading.Event()
        """A program was started."""
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

    def close(self) -> None:
        self._gone.set()
        with contextlib.suppress(OSError):  # It is closed already, or a connection is being accepted there.
            address = self._listener.getsockname()
            self._listener.close()
            # Its port stays taken, and refuses: another test's server may not answer in its place.
            self._port = socket.socket()
            self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._port.bind(address)
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
            # Paramiko calls nothing of a socket but what Wire has; its types ask for a whole one.
            transport = Server(Wire(connection, self._gone))  # type: ignore[arg-type]
            transport.add_server_key(paramiko.Ed25519Key.from_private_key(io.StringIO(self._key.private)))
            transport.start_server(event=threading.Event(), server=self)
            self._transports.append(transport)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.common.OPEN_SUCCEEDED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.common.AUTH_SUCCESSFUL

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        program = next((run for words, run in self.programs.items() if command.decode().startswith(words)), None)
        if program is None:
            return False
        assert isinstance(channel.transport, Server)
        channel.transport.begin = threading.Thread(target=self._run, args=(program, channel), daemon=True).start
        return True

    def _run(self, program: Program, channel: paramiko.Channel) -> None:
        self.asked.set()
        # A client that has read enough closes the connection, whatever the program still has to say.
        with contextlib.suppress(EOFError):
            program(channel)


def says(text: str, *, error: str = "") -> Program:
    """A program that ends well."""

    def run(channel: paramiko.Channel) -> None:
        channel.sendall(text.encode())
        channel.sendall_stderr(error.encode())
        channel.send_exit_status(0)
        channel.close()

    return run


@dataclass
class Machines:
    """A provider of nodes that a test takes away."""

    cluster_now: Cluster | None
    destroyed: bool = False

    name = "gce"
    ready_seconds = 60.0

    def cluster(self, name: str) -> Cluster | None:
        return self.cluster_now

    per_node: bool = False
    """Whether each node has a bucket of its own."""
    revivable: dict[str, Node] = field(default_factory=dict)
    """Stopped nodes that can be started again, as they are then."""
    revived: list[str] = field(default_factory=list)

    def bucket_as_seen_by_nodes(self, bucket: str) -> NodeBucket:
        return NodeBucket(bucket=bucket, per_node=self.per_node)

    def revive(self, nodes: Sequence[Node], *, deadline: float) -> Sequence[Node]:
        found = [self.revivable[node.name] for node in nodes if node.name in self.revivable]
        self.revived += [node.name for node in found]
        return found

    def close(self) -> None:
        pass

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
        context.state.save(ClusterRecord(id=cluster.id, runs=(RUN,), version=program.version()))
        write_private(context.state.key_file, new_key_pair("laptop").private)
        pin(context.state, nodes)
        return context, cluster, machines

    def keep(self, name: str, data: bytes) -> None:
        open_bucket(f"file://{self.folder}/bucket").write(name, data)

    def keep_manifest(self, node: int, *, complete: bool) -> None:
        manifest = Manifest(cluster="digits", run=RUN, node=node, complete=complete, files=())
        self.keep(manifest_name("digits", RUN, node), to_json(manifest))


NewVm = Callable[[dict[str, Program]], Vm]
