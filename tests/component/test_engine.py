"""The message for a user who has no Docker engine, or may not use it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from docker.transport.sshconn import SSHHTTPAdapter
from paramiko import SSHException

from hvdcloud import engine
from hvdcloud.cluster.model import Leftover
from hvdcloud.errors import CredentialsError, HvdcloudError, NodeError, UsageError
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


# --- the docker command's contexts ------------------------------------------------------------------------------------


def context(folder: Path, name: str, *, host: str, skip_verify: bool = False, config: str | None = None) -> None:
    """A context as the docker command stores it, below the folder that DOCKER_CONFIG names."""
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    endpoint = {"docker": {"Host": host, "SkipTLSVerify": skip_verify}}
    (meta / "meta.json").write_text(json.dumps({"Name": name, "Metadata": {}, "Endpoints": endpoint}))
    if config is not None:
        (folder / "config.json").write_text(config)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the docker command's configuration."""
    folder = tmp_path / "docker"
    folder.mkdir()
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


def test_the_docker_commands_current_context_is_used(settings: Path) -> None:
    context(settings, "colima", host="unix:///nowhere/colima.sock", config='{"currentContext": "colima"}')
    with pytest.raises(NodeError, match=r"/nowhere/colima\.sock") as raised:
        engine.connect()
    assert raised.value.hint == "docker context ls shows the engines; docker context use default takes this machine's"
    assert engine.command_environment()["DOCKER_CONTEXT"] == "colima"


def test_docker_context_beats_the_current_context(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context(settings, "lab", host="tcp://127.0.0.1:1", config='{"currentContext": "colima"}')
    monkeypatch.setenv("DOCKER_CONTEXT", "lab")
    with pytest.raises(NodeError, match=r"at tcp://127\.0\.0\.1:1: Connection refused") as raised:
        engine.connect()
    assert raised.value.hint == "docker context ls shows the engines; unset DOCKER_CONTEXT takes this machine's"
    assert engine.command_environment()["DOCKER_CONTEXT"] == "lab"


def test_docker_host_beats_docker_context(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_CONTEXT", "nosuch")
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:2")
    with pytest.raises(NodeError, match=r"DOCKER_HOST=tcp://127\.0\.0\.1:2: Connection refused"):
        engine.connect()
    environment = engine.command_environment()
    assert (environment["DOCKER_HOST"], environment.get("DOCKER_CONTEXT")) == ("tcp://127.0.0.1:2", None)
    monkeypatch.setenv("DOCKER_HOST", "")
    monkeypatch.delenv("DOCKER_CONTEXT")
    environment = engine.command_environment()
    assert (environment.get("DOCKER_HOST"), environment["DOCKER_CONTEXT"]) == (None, "default")


@pytest.mark.parametrize("by_environment", [True, False])
def test_a_context_that_does_not_exist_never_becomes_this_machines_engine(
    settings: Path, monkeypatch: pytest.MonkeyPatch, *, by_environment: bool
) -> None:
    (settings / "config.json").write_text('{"currentContext": "nosuch"}')
    if by_environment:
        monkeypatch.setenv("DOCKER_CONTEXT", "nosuch")
    for use in (engine.connect, engine.command_environment):
        with pytest.raises(UsageError, match=r"the Docker engine is not known: .*nosuch") as raised:
            use()
    other = "unset DOCKER_CONTEXT" if by_environment else "docker context use default"
    assert raised.value.hint == f"docker context ls shows the engines; {other} takes this machine's"


def test_a_contexts_tls_files_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker command")
    pem = {name: str(tmp_path / f"{name}.pem") for name in ("cert", "key")}
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*new, "-keyout", pem["key"], "-out", pem["cert"]], check=True, capture_output=True)
    for name in ("DOCKER_HOST", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    for name, more in (("lab", f",cert={pem['cert']},key={pem['key']}"), ("stranger", "")):
        monkeypatch.setenv("DOCKER_CONTEXT", name)
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(pem["cert"], pem["key"])
        server.load_verify_locations(pem["cert"])
        server.verify_mode = ssl.CERT_REQUIRED
        with server.wrap_socket(socket.create_server(("127.0.0.1", 0)), server_side=True) as listening:
            made = f"host=tcp://127.0.0.1:{listening.getsockname()[1]},ca={pem['cert']}{more}"
            make = ["docker", "context", "create", name, "--docker", made]
            without = {key: value for key, value in os.environ.items() if key != "DOCKER_CONTEXT"}
            subprocess.run(make, check=True, capture_output=True, env=without)
            enough = threading.Event()
            answering = threading.Thread(target=_answer_version, args=(listening, enough), daemon=True)
            answering.start()
            if name == "lab":
                assert engine.connect(timeout=10).api.api_version == "1.41"
            else:
                with pytest.raises(HvdcloudError):
                    engine.connect(timeout=10)
            enough.set()
            answering.join(10)


def _answer_version(listening: ssl.SSLSocket, enough: threading.Event) -> None:
    """To the docker command as well, of which some versions ask before they say what a context is."""
    listening.settimeout(0.1)
    while not enough.is_set():
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 21\r\n\r\n{"ApiVersion":"1.41"}')


# --- an engine that is too slow ---------------------------------------------------------------------------------------

NEVER = 600.0


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """An engine that says its version, lists what a test gives it, and does not answer anything else."""
    script = Script()
    monkeypatch.setenv("DOCKER_HOST", script.url.replace("http", "tcp"))
    version = Reply({"ApiVersion": "1.41"})
    script.handler = lambda call: version if call.path == "/version" else Reply(delay=NEVER)
    yield script
    script.close()


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
