"""The node program's verbs: one line of JSON in, one out; files where the contract says, with the modes it says."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hvdcloud.errors import NodeError
from hvdcloud.node import machine, program
from hvdcloud.node.files import Lock, lock_holder, write_json
from hvdcloud.node.mesh import hosts
from hvdcloud.node.records.secrets_file import write_private
from hvdcloud.node.records.spec import Spec
from hvdcloud.node.run.launcher import launcher_environment
from hvdcloud.node.run.probe import worker_problem
from hvdcloud.node.run.rank import environment_of_rank
from hvdcloud.node.run.supervisor import silence_limit
from tests.support.nodes import RUN, NodeCluster, entry, node_cluster


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


@pytest.fixture
def node_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HVDCLOUD_NODE_ROOT", str(tmp_path))
    return tmp_path


def host_key(number: int) -> str:
    return f"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{'A' * 42}{number}"


def join_request(*, hosts: int = 2) -> dict[str, Any]:
    return {
        "private_key": "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----\n",
        "public_key": "ssh-ed25519 AAAAmesh mesh",
        "hosts": [
            {
                "name": f"n{index}",
                "address": f"172.17.0.{index + 2}",
                "port": 2222,
                "host_key": host_key(index),
            }
            for index in range(hosts)
        ],
    }


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


def test_a_node_that_is_alone_uses_its_loopback(cluster: NodeCluster) -> None:
    # Horovod looks for 127.0.0.1 on the interface when every rank is on its own host.
    assert cluster.verb("n0", "join", payload=join_request(hosts=1))["interface"] == "lo"


def hosts_of(cluster: NodeCluster) -> Path:
    file = cluster.root("n0") / "etc/hosts"
    file.parent.mkdir(exist_ok=True)
    return file


def test_names_of_the_cluster_come_first_in_the_hosts_file_and_once(cluster: NodeCluster) -> None:
    file = hosts_of(cluster)
    file.write_text("127.0.0.1 localhost\n10.9.9.9 n1\n")
    inode = file.stat().st_ino
    request = join_request()
    request["hosts"][1]["address"] = "localhost"

    for _ in range(2):
        cluster.verb("n0", "join", payload=request)

    lines = file.read_text().splitlines()
    assert lines[1:3] == ["172.17.0.2 n0", "127.0.0.1 n1"]
    assert lines[4:] == ["127.0.0.1 localhost", "10.9.9.9 n1"]
    assert all(lines[at].startswith("# hvdcloud") for at in (0, 3))
    assert file.stat().st_ino == inode  # a mount in a container cannot be replaced

    cluster.verb("n0", "join", payload=join_request(hosts=1))
    assert "n1" not in file.read_text().partition("localhost")[0]


def test_where_names_are_addresses_the_hosts_file_stays_as_it_is(cluster: NodeCluster) -> None:
    file = hosts_of(cluster)
    file.write_text("127.0.0.1 localhost\n")
    request = join_request()
    for host in request["hosts"]:
        host["address"] = host["name"]

    cluster.verb("n0", "join", payload=request)

    assert file.read_text() == "127.0.0.1 localhost\n"


def test_a_peer_that_no_name_service_knows_is_named() -> None:
    with pytest.raises(NodeError, match=r"the peer digits-1 cannot be found: digits-1\.invalid: ") as raised:
        hosts.resolve({"digits-0": "digits-0", "digits-1": "digits-1.invalid"}, seconds=0.2)
    assert "internal DNS" in raised.value.hint


def test_the_interface_is_the_one_that_leads_to_the_peer() -> None:
    assert machine.interface_towards("127.0.0.1") == "lo"
    outward = machine.outward_interface()
    (own,) = (each.address for each in psutil.net_if_addrs()[outward] if each.family == socket.AF_INET)
    assert machine.interface_towards(own) == outward


def test_prepare_sends_only_what_is_missing_and_writes_no_secret_outside_its_folder(cluster: NodeCluster) -> None:
    code = {"train.py": "print(1)\n", "lib/model.py": "x = 1\n"}

    first = cluster.prepare(["python", "train.py"], env={"TOKEN": "hunter2"}, code=code)
    second = cluster.prepare(["python", "train.py"], env={"TOKEN": "hunter2"}, code=code)

    assert [answer["want"] for answer in first] == [[0, 1], [0, 1]]
    assert [answer["want"] for answer in second] == [[], []]
    assert [answer["restored"] for answer in second] == [0, 0]
    for name in cluster.names:
        holders = [path for path in cluster.root(name).rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
        assert holders == [cluster.root(name) / "run/hvdcloud" / RUN / "env.json"]
        assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600


@pytest.mark.parametrize("path", ["../escape.py", "/escape.py"])
def test_prepare_refuses_a_path_that_leaves_the_workspace(cluster: NodeCluster, path: str) -> None:
    (answer, _) = cluster.prepare(["true"], code={path: "x"})

    assert "not a path inside the project" in answer["error"]
    assert answer["hint"]


def test_prepare_refuses_a_file_that_was_not_asked_for(cluster: NodeCluster) -> None:
    header = {
        "run": RUN, "cluster": "digits", "node": 0, "bucket": "file:///nowhere", "bucket_endpoint": None,
        "keep_every": 1, "slots": 1, "command": ["true"], "env": {}, "resume": None, "credentials": None,
        "files": [entry("a.py", b"right")],
    }  # fmt: skip

    answer = cluster.send_code("n0", header, {"a.py": b"wrong"})

    assert "changed while it was sent" in answer["error"]
    assert not (cluster.root("n0") / "workspace/a.py").exists()


def test_a_new_run_starts_from_an_earlier_ones_checkpoints(cluster: NodeCluster) -> None:
    cluster.prepare(["true"])
    checkpoint = cluster.root("n0") / "var/lib/hvdcloud/checkpoints" / RUN / "model.pt"
    checkpoint.write_text("weights")
    assert cluster.verb("n0", "flush")["runs"][RUN] == {"pending": [], "errors": []}
    later = "20261121-101113-abcdef"

    answers = cluster.prepare(["true"], run=later, resume=RUN)

    assert [answer["restored"] for answer in answers] == [1, 1]
    for name in cluster.names:
        assert (cluster.root(name) / "var/lib/hvdcloud/checkpoints" / later / "model.pt").read_text() == "weights"


@pytest.mark.parametrize(
    ("verb", "payload", "said"),
    [
        (("state", "../../etc"), None, "is not a run"),
        (("state", "20260101-000000-abcdef"), None, "is not known"),
        (("stop", "20260101-000000-abcdef"), None, "is not known"),
        (("launch", RUN), None, "was not prepared on this node"),
        (("admit", RUN), {"hosts": []}, "has ended"),
        (("dismiss", RUN), {"nodes": []}, "has ended"),
        (("dismiss", RUN), None, "not one line of JSON"),
        (("agent",), None, "cannot do 'agent'"),
        (("dance",), None, "cannot do 'dance'"),
        (("logs", RUN, "--offset", "x"), None, "--offset"),
    ],
)
def test_a_verb_that_cannot_work_says_why_and_exits_1(
    cluster: NodeCluster, verb: tuple[str, ...], payload: dict[str, Any] | None, said: str
) -> None:
    process = cluster.start("n0", *verb)
    data = json.dumps(payload).encode() + b"\n" if payload is not None else b""
    out, errors = process.communicate(data, timeout=30)

    assert process.returncode == 1
    # The standard output of `logs` is the log of a run, which people read.
    answer = json.loads(errors if verb[0] == "logs" else out)
    assert said in answer["error"], errors
    assert answer["hint"]


def test_nodes_of_a_run_that_is_not_elastic_neither_come_nor_go(cluster: NodeCluster) -> None:
    cluster.start_run("import time; time.sleep(600)")

    for verb, request in (("admit", {"hosts": []}), ("dismiss", {"nodes": ["n1"]})):
        answer = cluster.verb("n0", verb, RUN, payload=request)
        assert answer["error"] == f"run {RUN} is not elastic"
        assert "run.elastic" in answer["hint"]


def test_a_rank_of_a_run_that_has_ended_says_so(cluster: NodeCluster) -> None:
    process = cluster.start("n0", "rank", RUN)
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 1
    assert b"has ended or was not prepared" in errors


def spec(**changes: Any) -> Spec:
    base: dict[str, Any] = {
        "run": RUN, "cluster": "digits", "node": 0, "name": "n0", "bucket": "file:///b", "bucket_endpoint": None,
        "keep_every": 1, "slots": 2, "cores": 8, "command": ["true"], "resume": None,
    }  # fmt: skip
    return Spec.from_mapping({**base, **changes})


def test_a_rank_gets_its_share_of_the_cores_unless_the_user_says_otherwise(node_root: Path) -> None:
    def threads(user: dict[str, str], **changes: Any) -> str:
        return environment_of_rank(spec(**changes), user=user, launcher={}, image={})["OMP_NUM_THREADS"]

    assert threads({}) == "4"
    assert threads({}, slots=16) == "1"
    assert threads({"OMP_NUM_THREADS": "7"}) == "7"


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


def test_horovodrun_sees_an_allow_list_only(node_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    write_json(
        node_root / "var/lib/hvdcloud/node.json",
        {"name": "n0", "cores": None, "environment": {"PATH": "/opt/venv/bin", "IMAGE_TOKEN": "hunter2"}},
    )

    environment = launcher_environment(RUN)

    assert "hunter2" not in environment.values()
    assert environment["PATH"] == "/opt/venv/bin"
    assert environment["HVDCLOUD_RUN"] == RUN


def test_what_open_mpi_and_python_need_of_the_images_environment_gets_there(node_root: Path) -> None:
    image = {
        "PATH": "/opt/mpi/bin:/usr/bin",
        "LD_LIBRARY_PATH": "/opt/mpi/lib; reboot",
        "PYTHONPATH": "/opt/lib",
        "OMPI_MCA_pml": "ucx",
        "OPAL_PREFIX": "/opt/mpi",
    }
    write_json(node_root / "var/lib/hvdcloud/node.json", {"name": "n0", "cores": None, "environment": image})

    environment = launcher_environment(RUN)

    assert {name: environment[name] for name in image} == image
    # sshd's sessions know none of it, and this goes through a shell.
    started = environment["OMPI_MCA_orte_launch_agent"]
    assert started == f"env HVDCLOUD_RUN={RUN} PATH=/opt/mpi/bin:/usr/bin OPAL_PREFIX=/opt/mpi orted"


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("exit 0", ""),
        ("echo 'Traceback …' >&2; echo 'ImportError: no libcuda' >&2; exit 1",
         "Horovod cannot be imported: ImportError: no libcuda"),
        ("exit 3", "Horovod cannot be imported: exit code 3"),
        ('test "$SETTING" = user && test "$HVDCLOUD_RUN"', ""),
        (None, "python is not there"),
    ],
)  # fmt: skip
def test_whether_a_worker_could_start_on_a_node(node_root: Path, python: str | None, problem: str) -> None:
    (node_root / "bin").mkdir()
    (node_root / "workspace").mkdir()
    if python is not None:
        (node_root / "bin/python").write_text(f"#!/bin/sh\n{python}\n")
        (node_root / "bin/python").chmod(0o755)
    environment = {"PATH": str(node_root / "bin")}
    write_json(node_root / "var/lib/hvdcloud/node.json", {"name": "n0", "cores": None, "environment": environment})
    write_private(RUN, environment={"SETTING": "user"})

    assert worker_problem(spec()) == problem


def test_no_worker_could_start_where_the_run_has_ended(node_root: Path) -> None:
    assert "has ended" in worker_problem(spec())


@pytest.mark.parametrize(("gloo", "silence"), [(30, 26), (10, 6), (8, 4), (4, 3)])
def test_a_frozen_node_is_given_up_in_time_for_the_run_to_end_within_the_gloo_timeout(
    gloo: float, silence: float
) -> None:
    assert silence_limit(gloo, beat=1.0) == silence


def test_a_lock_does_not_outlive_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert lock_holder(path) is None
    held = Lock(path)
    assert held.acquire({"pid": os.getpid()})

    assert not Lock(path).acquire({"pid": 1})
    assert lock_holder(path) == {"pid": os.getpid()}
    held.release()

    assert lock_holder(path) is None
    assert Lock(path).acquire({"pid": 2})
