"""A real node's sshd behind the real `gcloud compute start-iap-tunnel`, through a relay that speaks its protocol."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvdcloud.cluster.files import write_private
from hvdcloud.cluster.model import SSH_PORT, Node, NodeState
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import NodeError
from hvdcloud.providers.gce.ssh_access import iap_proxy_command
from hvdcloud.remote.keys import pin
from hvdcloud.remote.ssh import Session
from tests.standins.iap import RefusedError, relaying
from tests.standins.registry import free_port
from tests.support.gcloud import Gcloud
from tests.support.harness import running_children
from tests.support.reached_machine import Machine, running_machine

pytestmark = pytest.mark.engine

NAME = "t-tunnel-0"
TOKEN = "ya29.tunnel"


class Relay:
    """Where its tunnels lead, and what was asked for."""

    def __init__(self, machine: Machine) -> None:
        self.url = ""
        self.place = (machine.address, SSH_PORT)
        self.refuses: RefusedError | None = None
        self.asked: list[tuple[Mapping[str, str], str]] = []

    def backend(self, asked: Mapping[str, str], token: str) -> tuple[str, int]:
        self.asked.append((asked, token))
        if self.refuses:
            raise self.refuses
        return self.place


@pytest.fixture(scope="module")
def gcloud(tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    return Gcloud(tmp_path_factory.mktemp("gcloud"), token=TOKEN, project="other")


@pytest.fixture(scope="module")
def machine(gcloud: Gcloud, engine: Any, image: str) -> Iterator[Machine]:
    with running_machine(engine, image, NAME) as machine:
        yield machine


@pytest.fixture
def relay(machine: Machine) -> Iterator[Relay]:
    relay = Relay(machine)
    with relaying(relay.backend) as relay.url:
        yield relay


@pytest.fixture
def state(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gcloud: Gcloud) -> ClusterState:
    for name, value in {**gcloud.environ, "HVDCLOUD_STATE_DIR": str(tmp_path / "state")}.items():
        monkeypatch.setenv(name, value)
    state = ClusterState("t-tunnel")
    state.make()
    write_private(state.key_file, machine.key)
    return state


@pytest.fixture
def node(machine: Machine, relay: Relay, state: ClusterState) -> Node:
    """As provider gce describes it, but for where gcloud finds the relay."""
    command = iap_proxy_command("test-project", "us-central1-a", NAME, SSH_PORT)
    override = f"--iap-tunnel-url-override={relay.url} --iap-tunnel-insecure-disable-websocket-cert-check"
    node = Node(
        name=NAME,
        index=0,
        id="1",
        state=NodeState.RUNNING,
        port=SSH_PORT,
        host_key=machine.status["host_key"],
        proxy_command=f"{command} {override}",
    )
    pin(state, [node])
    return node


@pytest.fixture
def session(node: Node, state: ClusterState) -> Iterator[Session]:
    session = Session(node, state)
    yield session
    session.close()


def tunnels() -> list[psutil.Process]:
    """The programs that this test started."""
    return running_children("start-iap-tunnel")


def test_everything_goes_through_one_tunnel_which_ends_with_the_session(session: Session, relay: Relay) -> None:
    assert session.run("hostname").stdout == f"{NAME}\n"
    assert len(session.run("head -c 20000000 /dev/zero").stdout) == 20_000_000
    assert session.run("wc -c", stdin="x" * 5_000_000).stdout == "5000000\n"
    ((asked, token),) = relay.asked
    assert (asked["project"], asked["zone"], asked["instance"]) == ("test-project", "us-central1-a", NAME)
    assert (asked["interface"], asked["port"], token) == ("nic0", str(SSH_PORT), TOKEN)
    assert len(tunnels()) == 1
    session.close()
    assert tunnels() == []


def test_plain_ssh_takes_the_same_way_and_says_nothing_more(node: Node, state: ClusterState) -> None:
    ssh = shutil.which("ssh")
    assert ssh
    done = subprocess.run(
        [ssh, "-F", str(state.ssh_config), "0", "hostname"], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == (f"{NAME}\n", "")


def test_a_port_where_nothing_answers(session: Session, relay: Relay) -> None:
    relay.place = ("127.0.0.1", free_port())
    with pytest.raises(NodeError) as raised:
        session.open()
    assert raised.value.details.endswith(
        f"[4003: 'failed to connect to backend']. (Failed to connect to port {SSH_PORT})"
    )
    assert tunnels() == []


def test_an_account_that_may_not_use_the_tunnel(session: Session, relay: Relay) -> None:
    relay.refuses = RefusedError(4033, "not authorized")
    with pytest.raises(NodeError) as raised:
        session.open()
    assert raised.value.details.endswith("Error while connecting [4033: 'not authorized'].")
    assert "roles/iap.tunnelResourceAccessor" in raised.value.hint


def test_a_gcloud_without_a_login(session: Session, relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUDSDK_AUTH_ACCESS_TOKEN_FILE")
    with pytest.raises(NodeError) as raised:
        session.open()
    assert "gcloud auth login" in raised.value.hint
    assert relay.asked == []
