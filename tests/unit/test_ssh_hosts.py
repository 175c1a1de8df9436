"""Provider ssh: the hosts of hvdcloud.yaml, OpenSSH's command lines and errors, what a host says, and requests."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from hvdcloud.cluster.model import Node, NodeState
from hvdcloud.config.ssh_hosts import SshHostConfig, SshMachinesConfig
from hvdcloud.errors import CapacityError, CredentialsError, HvdcloudError, NodeError, UsageError
from hvdcloud.providers.engine import facts
from hvdcloud.providers.ssh import openssh
from hvdcloud.providers.ssh.provider import SshProvider
from hvdcloud.providers.ssh.requests import FIRST_PORT, PORTS, port_of
from tests.support.configs import load_config
from tests.support.ssh_samples import SPEC


def host(**keys: Any) -> SshHostConfig:
    return SshHostConfig.model_validate({"host": "gpu1", **keys})


# --- hvdcloud.yaml ---------------------------------------------------------------------------------------------------


def config(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "hvdcloud.yaml"
    file.write_text(f"name: digits\nprovider: ssh\n{text}")
    return load_config(file, environ={})


def test_a_host_is_written_as_for_ssh(tmp_path: Path) -> None:
    found = config(
        tmp_path, "ssh: {hosts: [ann@gpu1, 'gpu2:2200', {host: 10.0.0.7, jump: login.example.org, gpus: 2}]}"
    )
    first, second, third = found.ssh.hosts
    assert (first.host, first.user, first.text) == ("gpu1", "ann", "ann@gpu1")
    assert (second.host, second.port) == ("gpu2", 2200)
    assert (third.host, third.jump, third.gpus) == ("10.0.0.7", "login.example.org", 2)


def test_nodes_are_as_many_as_hosts_and_never_more(tmp_path: Path) -> None:
    assert config(tmp_path, "ssh: {hosts: [gpu1, gpu2, gpu3]}").nodes == 3
    assert config(tmp_path, "nodes: 1\nssh: {hosts: [gpu1, gpu2]}").nodes == 1
    with pytest.raises(UsageError, match=r"nodes is 3, and ssh\.hosts names 2"):
        config(tmp_path, "nodes: 3\nssh: {hosts: [gpu1, gpu2]}")
    with pytest.raises(UsageError, match=r"provider ssh needs ssh\.hosts"):
        config(tmp_path, "")


@pytest.mark.parametrize(
    "written",
    [
        "-oProxyCommand=touch /tmp/x",
        "ann@-gpu1",
        "-l@gpu1",
        "gpu1 -oPermitLocalCommand=yes",
        "gpu1;id",
        "$(id)",
        "gpu1\nHost *",
        "",
        {"host": "gpu1", "user": "-oProxyCommand=id"},
        {"host": "gpu1", "jump": "-oProxyCommand=id"},
        {"host": "gpu1", "jump": "login -W x"},
        {"host": "gpu1", "jump": "a,b"},
        {"host": "gpu1", "port": 0},
        {"host": "gpu1", "address": "10.0.0.300"},
        {"host": "gpu1", "address": "10.0.0.7 digits"},
    ],
)
def test_no_host_is_an_option_of_ssh_or_a_command(written: object) -> None:
    with pytest.raises(ValidationError):
        SshMachinesConfig.model_validate({"hosts": [written]})


def test_the_file_s_hosts_are_told_from_those_of_the_environment(tmp_path: Path) -> None:
    assert config(tmp_path, "ssh: {hosts: [gpu1]}").hosts_are_the_files
    given = {"HVDCLOUD_SSH__HOSTS": "[gpu2]"}
    found = load_config(tmp_path / "hvdcloud.yaml", environ=given)
    assert [each.host for each in found.ssh.hosts] == ["gpu2"]
    assert not found.hosts_are_the_files


_STRICT = "and you have requested strict checking.\nHost key verification failed."

# --- OpenSSH ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["StrictHostKeyChecking=yes", "BatchMode=yes", "ForwardAgent=no", "RemoteCommand=none"])
def test_every_connection_is_stricter_than_any_configuration(key: str) -> None:
    control = Path("/run/c")
    for argv in (
        openssh.shared_connection(host(), control),
        openssh.command(host(), control, ["sh"]),
        shlex.split(openssh.proxy_command(host(), 20001)),
    ):
        assert f"-o{key}" in argv
        assert argv[argv.index("--") + 1] == "gpu1"


def test_a_jump_host_s_key_has_to_be_known_as_well() -> None:
    argv = openssh.options(host(user="ann", port=2200, jump="bob@login:24"))
    (proxy,) = (word for word in argv if word.startswith("-oProxyCommand="))
    assert "-oStrictHostKeyChecking=yes" in proxy
    assert proxy.endswith("-W [%h]:%p ssh://bob@login:24")
    assert argv[argv.index("-l") + 1] == "ann"
    assert argv[argv.index("-p") + 1] == "2200"
    assert openssh.by_hand(host(user="ann", port=2200, jump="login"), "true") == "ssh -J login -p 2200 ann@gpu1 true"


def test_nodes_are_reached_at_the_loopback_interface_of_their_host() -> None:
    assert shlex.split(openssh.proxy_command(host(), 20001))[-4:] == ["-W", "127.0.0.1:20001", "--", "gpu1"]
    assert "-oControlPath=none" in shlex.split(openssh.proxy_command(host(), 20001))
    shared = openssh.proxy_command(host(), 20001, control=Path("/tmp/hvdcloud-0/x/control"))
    assert "-oControlPath=/tmp/hvdcloud-0/x/control" in shlex.split(shared)


@pytest.mark.parametrize(
    ("said", "kind", "message", "hint"),
    [
        (
            f"No ED25519 host key is known for gpu1 {_STRICT}",
            CredentialsError,
            "the host key of gpu1 is not known on this machine",
            "ssh gpu1 shows it",
        ),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            CredentialsError,
            "nothing was sent",
            "which line",
        ),
        ("ann@10.0.0.7: Permission denied (publickey).", CredentialsError, "gpu1 refuses this user's keys", "ssh-add"),
        (
            "ssh: connect to host 10.0.0.7 port 22: No route to host",
            NodeError,
            "gpu1 cannot be reached by SSH",
            "ssh gpu1 shows",
        ),
        ("", NodeError, "ssh says nothing", "ssh gpu1 shows"),
    ],
)
def test_what_ssh_says_becomes_an_error_with_the_next_command(
    said: str, kind: type[HvdcloudError], message: str, hint: str
) -> None:
    error = openssh.explain(host(), said)
    assert type(error) is kind
    assert message in error.message
    assert hint in error.hint


# --- what a host says ------------------------------------------------------------------------------------------------

SAID = """\
Welcome to gpu1!
--- hvdcloud connection
192.168.1.2 53114 192.168.1.7 22
--- hvdcloud route
192.0.2.1 via 192.168.1.1 dev eno1 src 192.168.1.8 uid 0
--- hvdcloud hook
/usr/bin/nvidia-container-runtime-hook
--- hvdcloud devices
0, GPU-1, 535.129.03, 32478, 3, [N/A], 7.0, Tesla V100
--- hvdcloud processes
GPU-1, 4711, 12000, /usr/bin/python3
"""


def test_a_host_says_address_and_gpus() -> None:
    found = facts.parse(SAID, address=None)
    assert found.address == "192.168.1.7"
    assert found.hook
    (device,) = found.found_gpus("gpu1")
    assert (device.uuid, device.capability, device.processes) == ("GPU-1", "7.0", ("python3 (pid 4711, 12.6 GB)",))
    assert facts.parse(SAID, address="10.1.1.1").address == "10.1.1.1"


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("127.0.0.1 1 127.0.0.1 22", "192.168.1.8"),
        ("::1 1 ::1 22", "192.168.1.8"),
        ("fe80::2 1 fe80::7 22", "192.168.1.8"),
        ("::ffff:192.168.1.2 1 ::ffff:192.168.1.7 22", "192.168.1.7"),
        ("", "192.168.1.8"),
        ("$(id) 1 evil\n 22", "192.168.1.8"),
    ],
)
def test_an_address_that_others_could_not_use_is_none(connection: str, expected: str) -> None:
    assert facts.parse(SAID.replace("192.168.1.2 53114 192.168.1.7 22", connection), address=None).address == expected


def test_a_host_whose_nodes_get_no_gpus_is_not_asked_for_them() -> None:
    assert "nvidia-smi" not in facts.script(ask_gpus=False)
    assert "nvidia-smi" in facts.script(ask_gpus=True)


# --- what is asked for -----------------------------------------------------------------------------------------------


def test_a_port_is_the_same_for_the_same_node_and_another_one_for_others() -> None:
    first = port_of(SPEC, 0)
    assert first == port_of(SPEC, 0)
    assert FIRST_PORT <= first < FIRST_PORT + PORTS
    assert len({first, port_of(SPEC, 1), port_of(dataclasses.replace(SPEC, id="def456"), 0)}) == 3


def test_a_node_is_made_again_on_the_host_of_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = SshProvider(SshMachinesConfig.model_validate({"hosts": ["gpu1", "gpu2"]}))
    spec = dataclasses.replace(SPEC, nodes=2)
    there: list[Node] = []
    monkeypatch.setattr(provider, "cluster", lambda name: SimpleNamespace(nodes=there))
    planned: list[Sequence[int]] = []
    monkeypatch.setattr(provider, "_planned", lambda spec, indices: planned.append(indices))
    provider.plan_growth(spec, [1])
    assert planned == [[1]]
    with pytest.raises(CapacityError, match=r"ssh\.hosts names 2 hosts, too few"):
        provider.plan_growth(spec, [2])
    there += [Node(name="digits-0", index=0, id="1", state=NodeState.RUNNING, host="gpu2")]
    with pytest.raises(UsageError, match=r"gpu2 has node digits-0, which ssh\.hosts names in another place now"):
        provider.plan_growth(spec, [1])
