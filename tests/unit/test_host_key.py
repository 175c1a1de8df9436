"""Host keys come from inside nodes: nothing but one key gets into a file that ssh reads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import NodeError, UsageError
from hvdcloud.node.mesh import join
from hvdcloud.node.mesh.host_key import is_host, is_host_key
from hvdcloud.providers.gce.ops.ready import parse_status
from hvdcloud.remote.keys import new_key_pair, pin, pinned

# The same in each process of a test session, where it is a part of tests' names.
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIL0OhjChcQbz4fqbcoOkYNE5/fyrL2JyuMEDSgnai/oX"
BODY = KEY.partition(" ")[2]
TRICKS = [
    f"{KEY}\n*  {KEY}",
    f"{KEY}\r\n* {KEY}",
    f"{KEY}\n",
    f"\n{KEY}",
    f"{KEY} a comment",
    f"{KEY} ",
    f" {KEY}",
    f"{KEY}#",
    f"{KEY}\x00",
    f"{KEY}\x1b[2J",
    f"{KEY}\u2028* {KEY}",
    f"@cert-authority * {KEY}",
    f"x,* {KEY}",
    f"ssh-ed25519\t{BODY}",
    f"ssh-ed25519  {BODY}",
    f"ssh-rsa {BODY}",
    "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ==",
    f"{KEY}A",
    KEY[:-1],
    "ssh-ed25519 AAAA",
    "",
    "None",
    None,
    7,
    [KEY],
]


def test_the_keys_that_ssh_makes_are_taken() -> None:
    assert all(is_host_key(new_key_pair("x").public.rpartition(" ")[0]) for _ in range(100))


@pytest.mark.parametrize("text", TRICKS)
@pytest.mark.usefixtures("state_root")
def test_nothing_else_is_pinned_here_or_on_a_node(text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_host_key(text)
    assert parse_status(json.dumps({"status": "ready", "host_key": text})) == {}
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path / "node"))
    state = ClusterState("digits")
    state.make()
    node = Node(name="digits-0", index=0, id="x", state=NodeState.RUNNING, address="192.0.2.1", host_key=KEY)
    pin(state, [node])
    with pytest.raises(NodeError, match="host key"):
        pin(state, [replace(node, host_key=text)])
    assert pinned(state) == {"digits-0": KEY}
    host = {"name": "n0", "address": "n0", "port": 2222, "host_key": text}
    with pytest.raises((NodeError, UsageError)):
        join.main({"private_key": "x", "public_key": "ssh-ed25519 AAAA mesh", "hosts": [host]})
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "n0\nHost *"},
        {"name": "n0,*"},
        {"name": "-oProxyCommand=x"},
        {"address": "n0 evil"},
        {"address": "*"},
        {"address": ""},
        {"port": 0},
        {"port": 1 << 16},
    ],
)
def test_a_peers_name_and_address_are_one_host(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path / "node"))
    host = {"name": "n0", "address": "n0", "port": 2222, "host_key": KEY, **change}
    with pytest.raises(UsageError):
        join.main({"private_key": "x", "public_key": "ssh-ed25519 AAAA mesh", "hosts": [host]})
    assert not (tmp_path / "node").exists()


def test_hosts_are_taken() -> None:
    for text in ("digits-0", "10.0.0.2", "fd00::2", "digits-1.us-central1-a.c.lab.internal", "localhost", "n"):
        assert is_host(text)
