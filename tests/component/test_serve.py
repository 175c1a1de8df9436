"""A launch starts the node program once on each node: one process carries out its verbs, one after the other."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import paramiko
import pytest

from hvdcloud.errors import NodeError
from hvdcloud.remote.code import Sending, list_code, prepare
from hvdcloud.remote.keys import new_key_pair
from hvdcloud.remote.ssh import NodeRefusedError, Session
from tests.support.node_buckets import BucketNode
from tests.support.nodes import RUN, NodeCluster, node_cluster
from tests.support.vanishing import Laptop, NewVm, says

WAIT_SECONDS = 120


@pytest.fixture
def node(tmp_path: Path) -> Iterator[BucketNode]:
    node = BucketNode(tmp_path / "node", 0)
    yield node
    node.vm.close()


@pytest.fixture
def session(laptop: Laptop, node: BucketNode) -> Iterator[Session]:
    context, _, _ = laptop.context([node.vm])
    session = Session(node.vm.node(0), context.state)
    yield session
    session.close()


@pytest.fixture
def cluster() -> Iterator[NodeCluster]:
    with node_cluster() as cluster:
        yield cluster


def join_request() -> dict[str, Any]:
    mesh, host = new_key_pair("mesh"), new_key_pair("").public.strip()
    hosts = [{"name": "n0", "address": "127.0.0.1", "port": 2222, "host_key": host}]
    return {"private_key": mesh.private, "public_key": mesh.public, "hosts": hosts}


def header(node: BucketNode, **more: Any) -> Mapping[str, Any]:
    bucket = f"file://{node.root}/bucket"
    known = {"run": RUN, "cluster": "digits", "node": 0, "bucket": bucket, "bucket_endpoint": None, "keep_every": 60}
    return {**known, "slots": 1, "command": ["true"], "env": {}, "resume": None, **more}


def send(session: Session, node: BucketNode, folder: Path, **more: Any) -> int:
    sending = Sending(lambda _: None, lambda _: None)
    sent = prepare(session, header=header(node, **more), folder=folder, code=list_code(folder), sending=sending)
    return sent.files


def test_verbs_that_follow_each_other_share_one_process(session: Session, node: BucketNode, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_bytes(b"#" * 30_000)
    session.serve()
    assert session.call("join", payload=join_request())["cores"] > 0
    assert send(session, node, project) == 1
    assert (node.root / "workspace/train.py").stat().st_size == 30_000
    assert send(session, node, project) == 0, "nothing is sent twice, and what ends an empty archive disturbs nobody"
    assert session.call("join", payload=join_request())["cores"] > 0
    assert node.verbs == ["serve"]
    assert session.call("state")["runs"] == []
    assert node.verbs == ["serve", "state"], "other verbs have a process of their own"


def test_what_follows_a_verb_does_not_wait_until_the_node_has_acknowledged_it(session: Session) -> None:
    assert session.open().sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_after_a_verb_that_failed_the_next_one_has_a_process_of_its_own(
    session: Session, node: BucketNode, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    session.serve()
    with pytest.raises(NodeRefusedError, match="the run has no command"):
        send(session, node, project, command=[])
    assert session.call("join", payload=join_request())["cores"] > 0
    assert node.verbs == ["serve", "join"]


def test_a_node_of_an_earlier_version_is_asked_verb_by_verb(laptop: Laptop, new_vm: NewVm) -> None:
    vm = new_vm({"hvdcloud-node join": says('{"cores": 3}\n')})
    context, _, _ = laptop.context([vm])
    session = Session(vm.node(0), context.state)
    session.serve()
    assert session.call("join", payload=join_request()) == {"cores": 3}
    session.close()


def test_a_verb_that_the_node_does_not_serve_gets_a_process_of_its_own(laptop: Laptop, new_vm: NewVm) -> None:
    def serves(channel: paramiko.Channel) -> None:
        channel.sendall(b'{"serves": ["prepare"]}\n')

    vm = new_vm({"hvdcloud-node serve": serves, "hvdcloud-node join": says('{"cores": 3}\n')})
    context, _, _ = laptop.context([vm])
    session = Session(vm.node(0), context.state)
    session.serve()
    assert session.call("join", payload=join_request()) == {"cores": 3}
    session.close()


def test_a_process_that_died_between_two_verbs_is_replaced(laptop: Laptop, new_vm: NewVm) -> None:
    def dies(channel: paramiko.Channel) -> None:
        channel.sendall(b'{"serves": ["join"]}\n')
        channel.send_exit_status(137)
        channel.close()

    vm = new_vm({"hvdcloud-node serve": dies, "hvdcloud-node join": says('{"cores": 3}\n')})
    context, _, _ = laptop.context([vm])
    session = Session(vm.node(0), context.state)
    session.serve()
    # It may be noticed when the verb is sent, too: then it is a lost connection.
    try:
        assert session.call("join", payload=join_request()) == {"cores": 3}
    except NodeError:
        assert session.call("join", payload=join_request()) == {"cores": 3}
    session.close()


def served(cluster: NodeCluster) -> subprocess.Popen[bytes]:
    process = cluster.start("n0", "serve")
    assert process.stdout is not None
    assert "prepare" in json.loads(process.stdout.readline())["serves"]
    return process


def ask(process: subprocess.Popen[bytes], verb: str, *arguments: str, payload: object = None) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps({"verb": verb, "arguments": arguments}).encode() + b"\n")
    if payload is not None:
        process.stdin.write(json.dumps(payload).encode() + b"\n")
    process.stdin.flush()


def test_a_run_that_it_has_launched_ends_while_the_process_follows_its_log(cluster: NodeCluster) -> None:
    """The supervisor's lock is the supervisor's alone: it is free when the run has ended."""
    cluster.prepare([sys.executable, "-c", "print('trains')"])
    process = served(cluster)
    assert process.stdout is not None
    assert process.stdin is not None
    hosts = [{"name": name, "slots": 1} for name in cluster.names]
    horovodrun = ["horovodrun", "--gloo", "-np", "2", "-H", "n0:1,n1:1"]
    request = {"cluster": "digits", "hosts": hosts, "np": 2, "horovodrun": horovodrun, "gloo_timeout": 6.0}
    ask(process, "launch", RUN, payload=request)
    assert json.loads(process.stdout.readline()) == {"ok": True}
    cluster.wait_done(seconds=WAIT_SECONDS)
    # While it waits for its next verb, another run can begin.
    assert all(answer.get("ok") for answer in cluster.prepare(["true"], run="20261121-101113-abcdef"))
    ask(process, "logs", RUN, "--follow")
    process.stdin.close()
    assert b"trains" in process.stdout.read()
    assert process.stderr is not None
    assert json.loads(process.stderr.read().splitlines()[-1])["result"] == "succeeded"
    assert process.wait(timeout=WAIT_SECONDS) == 0


def test_the_log_of_a_run_can_be_read_as_soon_as_it_is_launched(cluster: NodeCluster) -> None:
    """Also of an elastic run, whose supervisor has more to load before its first line."""
    cluster.prepare([sys.executable, "-c", "print('trains')"], elastic=True)
    process = served(cluster)
    hosts = [{"name": name, "index": index, "slots": 1} for index, name in enumerate(cluster.names)]
    elastic = {"min": 1, "max": 2, "longest_step": 30.0}
    horovodrun = ["horovodrun", "--gloo", "-np", "2", "-H", "n0:1,n1:1"]
    request = {"cluster": "digits", "hosts": hosts, "np": 2, "horovodrun": horovodrun, "gloo_timeout": 6.0}
    ask(process, "launch", RUN, payload={**request, "elastic": elastic})
    ask(process, "logs", RUN)
    out, errors = process.communicate(timeout=WAIT_SECONDS)
    assert json.loads(out.splitlines()[0]) == {"ok": True}
    assert json.loads(errors.splitlines()[-1])["run"] == RUN
    assert process.returncode == 0
    cluster.verb(cluster.head, "stop", RUN)
    cluster.wait_done(seconds=WAIT_SECONDS)


def test_a_line_that_is_no_verb_ends_it_with_the_reason(cluster: NodeCluster) -> None:
    process = served(cluster)
    ask(process, "poweroff")
    out, _ = process.communicate(timeout=WAIT_SECONDS)
    assert "does not know what this line asks for" in json.loads(out)["error"]
    assert process.returncode == 1
