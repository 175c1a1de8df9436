"""An sshd that takes a connection and closes it, as with too many at once (MaxStartups), takes the next one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.cluster.state import ClusterState
from hvdcloud.config.ssh_hosts import SshHostConfig
from hvdcloud.errors import NodeError
from hvdcloud.providers.ssh import connection
from hvdcloud.providers.ssh.connection import Host
from hvdcloud.remote.keys import new_key_pair, pin, write_key_pair
from hvdcloud.remote.ssh import Session
from tests.support.nodes import node_cluster


class Busy:
    """A listener that closes its first connections, and greets the others as sshd does."""

    def __init__(self, closes: int) -> None:
        self.closes, self.taken = closes, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self.taken += 1
            with taken:
                if self.taken > self.closes:
                    taken.sendall(b"SSH-2.0-test\r\n")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def busy() -> Iterator[Busy]:
    listener = Busy(closes=2)
    yield listener
    listener.close()


def test_a_peer_that_is_busy_is_not_one_that_another_does_not_reach(busy: Busy) -> None:
    key = new_key_pair("n").public.rpartition(" ")[0]
    ports = {"n0": 2222, "n7": busy.port}
    hosts = [{"name": name, "address": "127.0.0.1", "port": port, "host_key": key} for name, port in ports.items()]
    request = {"private_key": "key", "public_key": "ssh-ed25519 AAAA mesh", "hosts": hosts, "check": True}
    with node_cluster() as cluster:
        assert cluster.verb("n0", "join", payload=request)["unreached"] == {}
    assert busy.taken == 3


def test_a_host_that_is_busy_is_tried_until_its_time_is_over(busy: Busy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "OPEN_SECONDS", 3.0)
    busy.closes = 1_000
    host = Host(SshHostConfig(host="127.0.0.1", port=busy.port, user="nobody"))
    with pytest.raises(NodeError, match=r"127\.0\.0\.1 (cannot be reached|did not answer) by SSH"):
        host.run("true")
    host.close()
    assert busy.taken > 1


def test_a_node_that_has_not_answered_is_tried_once_by_what_the_command_does_next(
    busy: Busy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path))
    monkeypatch.setattr("hvdcloud.remote.connection.MOST_SECONDS", 3.0)
    state, key = ClusterState("digits"), new_key_pair("n")
    state.make()
    write_key_pair(state.key_file, key)
    node = Node(
        name="digits-0", index=0, id="n0", state=NodeState.RUNNING, address="127.0.0.1", port=busy.port,
        host_key=key.public.rpartition(" ")[0],
    )  # fmt: skip
    pin(state, [node])
    busy.closes = 1_000
    with pytest.raises(NodeError, match="node digits-0 does not answer"):
        Session(node, state).call("state")
    tried = busy.taken
    assert tried > 1
    with pytest.raises(NodeError, match="node digits-0 does not answer"):
        Session(node, state).call("state")
    assert busy.taken == tried + 1
