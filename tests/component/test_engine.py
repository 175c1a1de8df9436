"""The message for a user who has no Docker engine, or may not use it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.transport.sshconn import SSHHTTPAdapter
from paramiko import SSHException

from hvdcloud import engine
from hvdcloud.cluster.model import Leftover
from hvdcloud.errors import CredentialsError, NodeError
from hvdcloud.image.publish import registry
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


def test_a_host_that_ssh_does_not_trust_is_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Docker's own client raises what paramiko does: neither a DockerException nor an OSError.
    monkeypatch.setenv("DOCKER_HOST", "ssh://nobody@127.0.0.1")
    monkeypatch.setattr(SSHHTTPAdapter, "_connect", _refuse)
    with pytest.raises(NodeError, match=r"=ssh://nobody@127\.0\.0\.1: Server .* not found"):
        engine.connect()


def _refuse(adapter: SSHHTTPAdapter) -> None:
    raise SSHException("Server '127.0.0.1' not found in known_hosts")


def test_without_an_engine_the_command_that_starts_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine, "_settings", dict)
    monkeypatch.setattr("docker.utils.utils.DEFAULT_UNIX_SOCKET", "http+unix:///nowhere/docker.sock")
    with pytest.raises(NodeError, match="no Docker engine answers at its default address: No such file") as raised:
        engine.connect()
    assert "systemctl start docker" in raised.value.hint


def test_a_dead_engines_socket_is_no_engine(nowhere: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(nowhere))
        with pytest.raises(NodeError, match="Connection refused"):
            engine.connect()


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


def test_the_docker_commands_current_context_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({"currentContext": "colima"}))
    # The folder's name is the SHA-256 of the context's.
    meta = tmp_path / "contexts" / "meta" / "f24fd3749c1368328e2b149bec149cb6795619f244c5b584e844961215dadd16"
    meta.mkdir(parents=True)
    endpoint = {"docker": {"Host": "unix:///nowhere/colima.sock", "SkipTLSVerify": False}}
    (meta / "meta.json").write_text(json.dumps({"Name": "colima", "Metadata": {}, "Endpoints": endpoint}))
    with pytest.raises(NodeError, match=r"/nowhere/colima\.sock") as raised:
        engine.connect()
    assert raised.value.hint.startswith("docker context ls shows the engines; ")
    assert engine.address_environment()["DOCKER_HOST"] == "unix:///nowhere/colima.sock"


# --- an engine that is too slow ---------------------------------------------------------------------------------------

NEVER = 600.0


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """An engine that says its version, lists what a test gives it, and does not answer anything else."""
    script = Script()
    monkeypatch.setenv("DOCKER_HOST", script.url.replace("http", "tcp"))
    ping = Reply(headers={"Api-Version": "1.41"})
    script.handler = lambda call: ping if call.path == "/_ping" else Reply(delay=NEVER)
    yield script
    script.close()


def test_an_engine_that_does_not_say_its_version_in_passing_is_asked_for_it(slow: Script) -> None:
    slow.handler = lambda call: Reply({"ApiVersion": "1.40"}) if call.path == "/version" else Reply(status=404)
    assert engine.connect(timeout=1).api.api_version == "1.40"


def silence(script: Script) -> str:
    host = script.url.replace("http", "tcp")
    return f"the Docker engine at DOCKER_HOST={host} did not answer within 1 s"


def test_an_engine_that_accepts_and_never_answers_is_named(nowhere: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(nowhere))
        server.listen()
        with pytest.raises(NodeError) as raised:
            engine.connect(timeout=1)
    assert raised.value.message == f"the Docker engine at DOCKER_HOST=unix://{nowhere} did not answer within 1 s"
    assert "docker info" in raised.value.hint


def test_a_request_that_gets_no_answer_is_an_error_that_names_the_engine(slow: Script) -> None:
    provider = LocalProvider(engine.connect(timeout=1))
    with pytest.raises(NodeError) as raised:
        provider.cluster("t")
    assert raised.value.message == silence(slow)
    assert raised.value.hint.endswith("then try the same command again")


def test_an_engine_that_does_not_answer_about_a_registry_is_named_and_no_credentials(
    slow: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.connect, "__defaults__", (1,))
    with pytest.raises(NodeError) as raised:
        registry.digest_at_registry("127.0.0.1:5000/digits:1")
    assert raised.value.message == silence(slow)


def test_an_engine_that_ends_during_a_request_is_named(slow: Script) -> None:
    client = engine.connect(timeout=60)
    slow.handler = lambda _: Reply(reset=True)
    with pytest.raises(NodeError, match=r"the connection to the Docker engine at DOCKER_HOST=tcp://.* was lost"):
        client.api.containers()


def test_what_a_slow_engine_did_not_delete_is_left_and_named(slow: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hvdcloud.providers.engine.nodes.DESTROY_SECONDS", 0.0)
    container = {"Names": ["/t-0"], "Id": "4711", "Labels": {"managed-by": "hvdcloud", "hvdcloud-cluster": "t"}}
    provider = LocalProvider(engine.connect(timeout=1))

    def answer(call: Call) -> Reply:
        lists = {"containers/json": [container], "networks": [], "volumes": {}}
        found = next((lists[name] for name in lists if call.path.endswith(f"/{name}")), None)
        return Reply(delay=NEVER) if found is None else Reply(found)

    slow.handler = answer
    left = provider.destroy("t")
    assert left == [Leftover(object="container t-0", reason=silence(slow), delete_with="docker rm -f t-0")]
