"""Nodes that are reached through a program, as gcloud's tunnel is."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import psutil
import pytest

from hvdcloud.cluster.files import write_private
from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.cluster.state import ClusterState
from hvdcloud.errors import NodeError
from hvdcloud.lifecycle.ssh import forward_argv, ssh_argv
from hvdcloud.remote.keys import new_key_pair, pin
from hvdcloud.remote.proxy import Proxy
from hvdcloud.remote.ssh import Session
from tests.support.harness import running_children, until
from tests.support.nodes import wait_gone
from tests.support.vanishing import NewVm, says

HOST_KEY = new_key_pair("host").public.rpartition(" ")[0]
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
MANY = bytes(3_000_000)


def counts(channel: paramiko.Channel) -> None:
    """Says how many bytes came, and much more."""
    came = 0
    while data := channel.recv(1 << 15):
        came += len(data)
    channel.sendall(b"%d\n" % came + MANY)
    channel.send_exit_status(0)
    channel.close()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterState:
    monkeypatch.setenv("HVDCLOUD_STATE_DIR", str(tmp_path / "state"))
    state = ClusterState("digits")
    state.make()
    write_private(state.key_file, new_key_pair("laptop").private)
    return state


@pytest.fixture
def node(new_vm: NewVm, tmp_path: Path) -> Node:
    """As a provider without addresses describes it."""
    node = new_vm({"hostname": says("digits-0\n"), "counts": counts}).node(0)
    relay = tmp_path / "relay.py"
    relay.write_text(_RELAY)
    return replace(node, address=None, proxy_command=f"{sys.executable} {relay} {node.address} {node.port}")


@pytest.fixture
def session(node: Node, state: ClusterState) -> Iterator[Session]:
    pin(state, [node])
    session = Session(node, state)
    yield session
    session.close()


def relays() -> list[psutil.Process]:
    """The proxy programs that this test started."""
    return running_children("relay.py")


def node_behind(command: str) -> Node:
    return Node(
        name="digits-0", index=0, id="1", state=NodeState.RUNNING, port=2222, host_key=HOST_KEY, proxy_command=command
    )


def context_of(state: ClusterState, node: Node) -> Any:
    """Of a command for a cluster with this node."""
    cluster = SimpleNamespace(name="digits", nodes=(node,))
    return SimpleNamespace(cluster=lambda: cluster, record=lambda _: None, state=state)


def failure(state: ClusterState, node: Node) -> NodeError:
    pin(state, [node])
    session = Session(node, state)
    with pytest.raises(NodeError) as raised:
        session.open(within=2.0)
    session.close()
    return raised.value


def test_everything_goes_through_the_program_which_ends_with_the_session(session: Session) -> None:
    connection = session.open()
    assert connection.run("hostname", hide=True, in_stream=False).stdout == "digits-0\n"
    source, answer, _ = connection.client.exec_command("counts")
    source.write(MANY)
    source.channel.shutdown_write()
    assert len(answer.read()) == len(f"{len(MANY)}\n") + len(MANY)
    assert len(relays()) == 1
    session.close()
    assert relays() == []


def test_another_host_key_behind_the_program_ends_it_before_anything_is_sent(node: Node, state: ClusterState) -> None:
    pin(state, [replace(node, host_key=new_key_pair("other").public.rpartition(" ")[0])])
    with pytest.raises(NodeError, match="is not the pinned one; nothing was sent"):
        Session(node, state).open()
    assert relays() == []


def test_what_the_proxy_says_about_its_failure_is_shown(state: ClusterState, tmp_path: Path) -> None:
    said = "ERROR: Error while connecting [4033: 'not authorized']."
    program = program_in(tmp_path, f"echo x >>{tmp_path}/tries\ncat >&2 <<'END'\n{said}\nEND\nexit 1")
    error = failure(state, node_behind(f"{program} compute start-iap-tunnel digits-0 2222"))
    assert said in error.details
    assert f"through `{program} compute" in error.message
    assert "roles/iap.tunnelResourceAccessor" in error.hint
    assert len((tmp_path / "tries").read_text().splitlines()) >= 2, "a role that was just given counts after a minute"


def program_in(folder: Path, script: str) -> str:
    program = folder / "gcloud"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_closing_ends_the_program_and_what_it_started_even_if_it_will_not(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    stubborn = f"trap '' TERM\necho obstinate >&2\nsleep 987654 &\necho $! > {pid}.new\nmv {pid}.new {pid}\nwait"
    proxy = Proxy(program_in(tmp_path, stubborn))
    until(pid.exists, what="the program's start")
    for _ in range(2):
        proxy.close()
    assert proxy.said == "obstinate"
    wait_gone([int(pid.read_text())])


def test_openssh_gets_the_proxy_and_the_key_under_the_nodes_name(state: ClusterState) -> None:
    ssh = shutil.which("ssh")
    assert ssh
    behind = node_behind("gcloud compute start-iap-tunnel digits-0 2222 --project=100%")
    direct = Node(
        name="digits-1", index=1, id="2", state=NodeState.RUNNING, address="198.51.100.7", port=2222, host_key=HOST_KEY
    )
    pin(state, [behind, direct])
    assert state.known_hosts.read_text().splitlines() == [
        f"digits-0,[digits-0]:2222 {HOST_KEY}",
        f"digits-1,[198.51.100.7]:2222 {HOST_KEY}",
    ]

    def option(node: str, name: str) -> str | None:
        shown = subprocess.run(
            [ssh, "-G", "-F", str(state.ssh_config), node], capture_output=True, text=True, check=True
        )
        return next((line.partition(" ")[2] for line in shown.stdout.splitlines() if line.startswith(f"{name} ")), None)

    assert option("0", "proxycommand") == "gcloud compute start-iap-tunnel digits-0 2222 --project=100%%"
    assert option("digits-0", "hostkeyalias") == "digits-0"
    # No key of an agent's is offered instead, and no host key of this machine's is believed.
    assert option("0", "identitiesonly") == "yes"
    assert option("0", "identityagent") == "none"
    assert option("0", "forwardagent") == "no"
    assert option("0", "globalknownhostsfile") == "none"
    assert option("0", "userknownhostsfile") == str(state.known_hosts)
    assert option("0", "stricthostkeychecking") == "true"
    assert option("0", "passwordauthentication") == "no"
    assert option("digits-1", "proxycommand") is None
    assert option("digits-1", "hostname") == "198.51.100.7"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sh", "-c", 'echo "$0  $1"', "zero", "o n e"], "zero  o n e\n"),
        (["printf", "%s.", "it's", "$HOME", "*"], "it's.$HOME.*."),
        (["echo a b | tr a x"], "x b\n"),
    ],
    ids=["a command in quotes", "words", "one text for the shell"],
)
def test_the_users_command_keeps_its_quotes_on_the_node(state: ClusterState, words: list[str], said: str) -> None:
    node = node_behind("true")
    context = context_of(state, node)
    # What sshd does with it.
    text = " ".join(ssh_argv(context, "0", words)[4:])
    assert text.startswith("cd /workspace 2>/dev/null; ")
    assert subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True).stdout == said
    assert ssh_argv(context, "0", [])[-1] == node.name, "a shell, which starts there by itself"


def test_a_port_is_forwarded_by_the_same_ssh_as_a_shell_and_to_localhost_alone(state: ClusterState) -> None:
    context = context_of(state, node_behind("true"))
    shell, argv = ssh_argv(context, "0", []), forward_argv(context, 6006)
    assert [word for word in argv if word in shell] == shell
    assert argv[argv.index("-L") + 1] == "6006:localhost:6006"


@pytest.mark.parametrize("option", ["-oProxyCommand=touch MARK", "-oLocalCommand=x", "-F/dev/null", "-V", "--"])
def test_the_users_command_gives_ssh_no_options(state: ClusterState, tmp_path: Path, option: str) -> None:
    """A word that begins with a dash, such as a file's name, is a part of the command for the node."""
    heard, mark = tmp_path / "heard", tmp_path / "mark"
    program = program_in(tmp_path, f"echo came > {heard}; exit 1")
    node = node_behind(program)
    pin(state, [node])
    context = context_of(state, node)
    words = [option.replace("MARK", str(mark)), "ls"]
    argv = ssh_argv(context, "0", words)
    done = subprocess.run(argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert argv[-1].endswith(f"; {shlex.join(words)}")
    assert heard.exists(), done.stderr
    assert done.returncode == 255
    assert not mark.exists()
