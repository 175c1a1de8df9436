"""The message for a user who has no Docker engine, or may not use it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from hvdcloud import engine
from hvdcloud.cluster.model import Leftover
from hvdcloud.errors import CredentialsError, NodeError, UsageError
from hvdcloud.providers.local.provider import LocalProvider
from tests.support.scripted_api import Call, Reply, Script


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    return path


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("unix:///nowhere/docker.sock", "No such file or directory"),
        ("tcp://127.0.0.1:1", "Connection refused"),
        ("ssh://nobody@127.0.0.1:1", "Unable to connect to port 1 on 127.0.0.1"),
        ("foo://bar", "Invalid bind address protocol: foo://bar"),
    ],
)
def test_an_engine_that_docker_host_names_and_that_does_not_answer_is_named_so(
    host: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(NodeError) as raised:
        engine.connect()
    assert raised.value.message == f"no Docker engine answers at DOCKER_HOST={host}: {why}"
    assert raised.value.hint == "unset DOCKER_HOST takes this machine's engine; else set it to one that runs"


def test_without_an_engine_the_command_that_starts_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine, "_settings", dict)
    monkeypatch.setattr("docker.utils.utils.DEFAULT_UNIX_SOCKET", "http+unix:///nowhere/docker.sock")
    with pytest.raises(NodeError, match="no Docker engine answers at its default address: No such file") as raised:
        engine.connect()
    assert "systemctl start docker" in raised.value.hint


def test_a_socket_that_this_user_may_not_use_is_a_matter_of_permission(nowhere: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(nowhere))
        server.listen()
        nowhere.chmod(0)
        was = os.geteuid()
        if was == 0:  # root may use every socket
            nowhere.parent.chmod(0o755)
            os.seteuid(65534)
        try:
            with pytest.raises(CredentialsError, match="permission denied") as raised:
                engine.connect()
        finally:
            os.seteuid(was)
    assert "usermod -aG docker" in raised.value.hint


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_context_that_does_not_exist_never_becomes_this_machines_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_environment: bool
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text('{"currentContext": "nosuch"}')
    if by_environment:
        monkeypatch.setenv("DOCKER_CONTEXT", "nosuch")
    for use in (engine.connect, engine.command_environment):
        with pytest.raises(UsageError, match=r"the Docker engine is not known: .*nosuch") as raised:
            use()
    other = "unset DOCKER_CONTEXT" if by_environment else "docker context use default"
    assert raised.value.hint == f"docker context ls shows the engines; {other} takes this machine's"


def test_an_engine_that_accepts_and_never_answers_is_named(nowhere: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(nowhere))
        server.listen()
        with pytest.raises(NodeError) as raised:
            engine.connect(timeout=1)
    assert raised.value.message == f"the Docker engine at DOCKER_HOST=unix://{nowhere} did not answer within 1 s"
    assert "docker info" in raised.value.hint


def test_what_a_slow_engine_did_not_delete_is_left_and_named(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that says its version and lists what there is, and does not answer anything else."""
    host = script.url.replace("http", "tcp")
    monkeypatch.setenv("DOCKER_HOST", host)
    monkeypatch.setattr("hvdcloud.providers.engine.nodes.DESTROY_SECONDS", 0.0)
    container = {"Names": ["/t-0"], "Id": "4711", "Labels": {"managed-by": "hvdcloud", "hvdcloud-cluster": "t"}}
    answers = {"version": {"ApiVersion": "1.41"}, "containers/json": [container], "networks": [], "volumes": {}}

    def answer(call: Call) -> Reply:
        found = next((answers[name] for name in answers if call.path.endswith(f"/{name}")), None)
        return Reply(delay=600.0) if found is None else Reply(found)

    script.handler = answer
    left = LocalProvider(engine.connect(timeout=1)).destroy("t")
    reason = f"the Docker engine at DOCKER_HOST={host} did not answer within 1 s"
    assert left == [Leftover(object="container t-0", reason=reason, delete_with="docker rm -f t-0")]
