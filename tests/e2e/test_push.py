"""Pushes to a real registry."""

from __future__ import annotations

import base64
import io
import json
import secrets
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests

from hvdcloud.errors import ImageError, UsageError
from hvdcloud.image.push import push
from hvdcloud.image.stream import BuildEvent, ignore
from tests.harness import until

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
USER, PASSWORD = "someone", "hunter2-push"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_registry(folder: Path, auth: dict[str, Any]) -> Iterator[str]:
    """Debian's docker-registry on a port of its own; yields HOST:PORT."""
    program = shutil.which("docker-registry")
    assert program, "docker-registry is not installed: make registry"
    host = f"127.0.0.1:{free_port()}"
    configuration = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(folder / "storage")}},
        "http": {"addr": host},
        **auth,
    }
    (folder / "config.yml").write_text(json.dumps(configuration))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=log, stderr=log)
    try:
        until(lambda: answers(host), seconds=20, what=f"the registry at {host}")
        yield host
    finally:
        process.kill()
        process.wait()


def answers(host: str) -> bool:
    try:
        return requests.get(f"http://{host}/v2/", timeout=5).status_code in (200, 401)
    except requests.ConnectionError:
        return False


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_registry(tmp_path_factory.mktemp("registry"), {}) as host:
        yield host


@pytest.fixture(scope="module")
def private_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    bcrypt = pytest.importorskip("bcrypt", reason="paramiko brings it; without it no password file can be made")
    folder = tmp_path_factory.mktemp("private-registry")
    (folder / "htpasswd").write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    with running_registry(folder, {"auth": {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}}) as host:
        yield host


@pytest.fixture
def reference(engine: Any) -> Iterator[str]:
    """A small image of one file, other than every earlier one."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        content = secrets.token_bytes(100_000)
        member = tarfile.TarInfo("data")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    reference = f"hvdcloud/t-push:{secrets.token_hex(6)}"
    repository, _, tag = reference.partition(":")
    engine.api.import_image_from_data(data.getvalue(), repository=repository, tag=tag)
    image = engine.images.get(reference)
    yield reference
    engine.images.remove(image.id, force=True)


def test_the_digest_is_the_registrys_own(registry: str, reference: str) -> None:
    events: list[BuildEvent] = []
    digest = push(reference, f"{registry}/hvdcloud/digits", progress=events.append)
    tag = reference.partition(":")[2]
    manifest = requests.get(
        f"http://{registry}/v2/hvdcloud/digits/manifests/{tag}", headers={"Accept": MANIFEST}, timeout=10
    )
    assert digest == manifest.headers["Docker-Content-Digest"]
    assert any(event.kind == "layer" and event.text.endswith("Pushed") for event in events)


def test_pushing_again_gives_the_same_digest(registry: str, reference: str) -> None:
    first, second = (push(reference, f"{registry}/hvdcloud/again", progress=ignore) for _ in range(2))
    assert first == second


def test_what_was_pushed_can_be_pulled_by_its_digest(registry: str, reference: str, engine: Any) -> None:
    repository = f"{registry}/hvdcloud/pulled"
    digest = push(reference, repository, progress=ignore)
    pushed = engine.images.get(reference).id
    assert engine.images.pull(f"{repository}@{digest}").id == pushed


def test_a_repository_with_a_tag_of_its_own_keeps_it(registry: str, reference: str) -> None:
    push(reference, f"{registry}/hvdcloud/tagged:v7", progress=ignore)
    tags = requests.get(f"http://{registry}/v2/hvdcloud/tagged/tags/list", timeout=10).json()["tags"]
    assert tags == ["v7"]


def test_a_registry_that_is_down_fails_the_push(reference: str) -> None:
    host = f"127.0.0.1:{free_port()}"
    with pytest.raises(ImageError, match="connection refused") as raised:
        push(reference, f"{host}/hvdcloud/digits", progress=ignore)
    assert host in raised.value.hint


def test_a_push_without_credentials_says_how_to_log_in(private_registry: str, reference: str) -> None:
    with pytest.raises(ImageError, match=r"no basic auth credentials|unauthorized") as raised:
        push(reference, f"{private_registry}/hvdcloud/digits", progress=ignore)
    assert f"docker login {private_registry}" in raised.value.hint


def test_the_credentials_of_docker_login_are_used(
    private_registry: str, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = {"auths": {private_registry: {"auth": base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}}}
    (tmp_path / "config.json").write_text(json.dumps(login))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert push(reference, f"{private_registry}/hvdcloud/digits", progress=ignore).startswith("sha256:")


def test_an_image_that_is_not_there_is_not_pushed(registry: str, engine: Any) -> None:
    with pytest.raises(ImageError, match="there is no image hvdcloud/t-push:never") as raised:
        push("hvdcloud/t-push:never", f"{registry}/hvdcloud/digits", progress=ignore)
    assert raised.value.hint == "hvdcloud build"


def test_a_repository_that_is_none_is_refused(reference: str) -> None:
    with pytest.raises(UsageError, match=r"image\.repository 'Not A Repository'"):
        push(reference, "Not A Repository", progress=ignore)
