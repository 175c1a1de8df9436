"""How hosts get an image that is in no repository: which way, and what the last one is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from hvdcloud.config.ssh_hosts import SshHostConfig
from hvdcloud.errors import CapacityError, ImageError
from hvdcloud.providers.base import NodeProgress
from hvdcloud.providers.ssh import images
from hvdcloud.providers.ssh.connection import Host
from hvdcloud.providers.ssh.hosts import Hosts
from hvdcloud.providers.ssh.laptop_registry import LaptopRegistry, NoRegistryError

IMAGE = "hvdcloud/project:1"
DIGEST = f"sha256:{'1' * 64}"
ATTRIBUTES = {"Id": "sha256:9", "RootFS": {}, "Created": "", "Architecture": "amd64"}


class Engine:
    """docker-py's client; `error`: what a pull or a load ends with."""

    def __init__(self, *images: str, error: str = "") -> None:
        self.images, self.error = set(images), error
        self.asked: list[str] = []

    def inspect_image(self, name: str) -> dict[str, Any]:
        from docker.errors import ImageNotFound

        if name not in self.images:
            raise ImageNotFound(name)
        return ATTRIBUTES

    def tag(self, name: str, repository: str, tag: str) -> None:
        self.images.add(f"{repository}:{tag}")

    def remove_image(self, name: str) -> None:
        self.images.remove(name)

    def push(self, name: str, *, tag: str, **_: Any) -> list[dict[str, Any]]:
        assert f"{name}:{tag}" in self.images
        return [{"aux": {"Digest": DIGEST}}]

    def pull(self, name: str, *, tag: str, auth_config: dict[str, str], **_: Any) -> list[dict[str, Any]]:
        self.asked.append(f"{name}@{tag} {auth_config['password']}")
        if self.error:
            return [{"error": self.error}]
        self.images.add(f"{name}@{tag}")
        return [{"id": "abc", "status": "Pull complete"}]

    def get_image(self, name: str) -> list[bytes]:
        return [name.encode()]

    def load_image(self, chunks: list[bytes], **_: Any) -> list[dict[str, Any]]:
        self.asked.append("load")
        if self.error:
            return [{"error": self.error}]
        self.images.update(chunk.decode() for chunk in chunks)
        return [{"stream": f"Loaded image: {IMAGE}"}]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """This machine's engine, which has the image, and its registry."""
    api = Engine(IMAGE)

    class Client:
        def __init__(self, **_: Any) -> None:
            self.api = api

        def close(self) -> None:
            pass

    @contextlib.contextmanager
    def registry(_: Any) -> Iterator[LaptopRegistry]:
        yield LaptopRegistry(port=5000, password="hunter2")

    monkeypatch.setattr("hvdcloud.engine.connect", Client)
    monkeypatch.setattr(images, "laptop_registry", registry)
    return api


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[str, Engine]:
    """The hosts' engines."""
    found = {"gpu1": Engine(), "gpu2": Engine()}

    @contextlib.contextmanager
    def reverse(host: Host, port: int) -> Iterator[int]:
        yield port + 1

    monkeypatch.setattr(Host, "engine", lambda host, **_: found[host.name])
    monkeypatch.setattr(Host, "reverse", reverse)
    return found


def bring(image: str = IMAGE) -> list[str]:
    """The steps that were told."""
    told: list[NodeProgress] = []
    hosts = Hosts([SshHostConfig(host="gpu1"), SshHostConfig(host="gpu2")])
    images.bring(image, hosts, hosts.all, on_progress=told.append)
    return [f"{each.object}: {each.step}" for each in told]


def test_hosts_that_lack_it_pull_it_by_its_digest_from_this_machine(here: Engine, there: dict[str, Engine]) -> None:
    there["gpu2"].images.add(IMAGE)
    steps = bring()
    assert there["gpu1"].asked == [f"127.0.0.1:5001/hvdcloud@{DIGEST} hunter2"]
    assert there["gpu2"].asked == []
    # Under its own name and no other, on both sides.
    assert here.images == there["gpu1"].images == {IMAGE}
    assert steps[-2:] == ["gpu1: pulling the image: abc: Pull complete", "gpu1: has the image"]
    assert bring() == []


def test_the_whole_image_is_sent_where_no_registry_can_be(
    here: Engine, there: dict[str, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextlib.contextmanager
    def none(_: Any) -> Iterator[LaptopRegistry]:
        raise NoRegistryError("there is none", hint="")
        yield

    monkeypatch.setattr(images, "laptop_registry", none)
    assert "gpu1: sending the whole image, because there is none" in bring()
    assert [each.asked for each in there.values()] == [["load"], ["load"]]
    assert there["gpu1"].images == {IMAGE}


@pytest.mark.parametrize(
    ("said", "kind"), [("write /x: no space left on device", CapacityError), ("unexpected EOF", ImageError)]
)
def test_the_error_of_a_host_names_it(here: Engine, there: dict[str, Engine], said: str, kind: type[Exception]) -> None:
    there["gpu2"].error = said
    with pytest.raises(kind, match=f"gpu2.*{said}"):
        bring()
    assert IMAGE in there["gpu1"].images
