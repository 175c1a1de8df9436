"""The node program's verbs: one line of JSON in, one out; files where the contract says, with the modes it says."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.node import program
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.rank import environment_of_rank
from hvdcloud.node.run.supervisor import silence_limit
from tests.support.nodes import RUN, NodeCluster


def host_key(number: int) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 42}{number}"


def join_request() -> dict[str, Any]:
    hosts = [
        {"name": f"n{index}", "address": f"172.17.0.{index + 2}", "port": 2222, "host_key": host_key(index)}
        for index in range(2)
    ]
    private = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n"
    return {"private_key": private, "public_key": "ssh-ed25519 AAAAmesh mesh", "hosts": hosts}


def test_join_pins_every_peer_and_keeps_the_key_private(cluster: NodeCluster) -> None:
    folder = cluster.root("n0") / "root/.ssh"
    folder.mkdir(parents=True)
    (folder / "authorized_keys").write_text("ssh-ed25519 AAAAlaptop laptop\n")

    for _ in range(2):
        answer = cluster.verb("n0", "join", payload=join_request())

    assert set(answer) == {"version", "gpus", "interface"}
    assert answer["version"] == program.version()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "id_ed25519").stat().st_mode) == 0o600
    assert (folder / "known_hosts").read_text().splitlines() == [
        f"[172.17.0.2]:2222,[n0]:2222 {host_key(0)}",
        f"[172.17.0.3]:2222,[n1]:2222 {host_key(1)}",
    ]
    keys = (folder / "authorized_keys").read_text().splitlines()
    assert keys == ["ssh-ed25519 AAAAlaptop laptop", "ssh-ed25519 AAAAmesh mesh"]
    config = (folder / "config").read_text()
    pinned = ("StrictHostKeyChecking yes", "IdentitiesOnly yes", "GlobalKnownHostsFile /dev/null")
    for line in (*pinned, "BatchMode yes", "ServerAliveInterval 5", "User root"):
        assert line in config


def spec(**changes: Any) -> Spec:
    base: dict[str, Any] = {
        "run": RUN, "cluster": "digits", "node": 0, "name": "n0", "bucket": "file:///b", "bucket_endpoint": None,
        "keep_every": 1, "slots": 2, "cores": 8, "command": ["true"], "resume": None,
    }  # fmt: skip
    return Spec.from_mapping({**base, **changes})


def test_the_users_environment_wins_but_for_what_names_the_run(node_root: Path) -> None:
    environment = environment_of_rank(
        spec(),
        user={"A": "user", "HVDCLOUD_RUN": "mine"},
        launcher={"A": "launcher", "B": "launcher"},
        image={"A": "image", "B": "image", "C": "image"},
    )

    assert [environment[name] for name in "ABC"] == ["user", "launcher", "image"]
    assert environment["HVDCLOUD_RUN"] == RUN
    assert environment["HVDCLOUD_CHECKPOINT_DIR"] == str(node_root / "var/lib/hvdcloud/checkpoints" / RUN)


@pytest.mark.parametrize(("gloo", "silence"), [(30, 26), (10, 6), (8, 4), (4, 3)])
def test_a_frozen_node_is_given_up_in_time_to_end_within_the_gloo_timeout(gloo: float, silence: float) -> None:
    assert silence_limit(gloo, beat=1.0) == silence
