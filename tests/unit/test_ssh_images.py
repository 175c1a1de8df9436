"""How hosts get an image that is in no repository where this machine can have no registry: whole, where it lacks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
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


class Engine:
    """docker-py's client; `error`: what a load ends with."""

    def __init__(self, *images: str) -> None:
        self.images, self.loads, self.error = set(images), 0, ""

    def inspect_image(self, name: str) -> dict[str, Any]:
        from docker.errors import ImageNotFound

        if name not in self.images:
            raise ImageNotFound(name)
        return {"Id": "sha256:9"}

    def get_image(self, name: str) -> list[bytes]:
        return [name.encode()]

    def load_image(self, chunks: list[bytes], **_: Any) -> list[dict[str, Any]]:
        self.loads += 1
        if self.error:
            return [{"error": self.error}]
        self.images.update(chunk.decode() for chunk in chunks)
        return [{"stream": f"Loaded image: {IMAGE}"}]


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[str, Engine]:
    """The hosts' engines; this machine's has the image."""
    found = {"gpu1": Engine(), "gpu2": Engine()}

    @contextlib.contextmanager
    def none(_: Any) -> Iterator[LaptopRegistry]:
        raise NoRegistryError("there is none", hint="")
        yield

    here = SimpleNamespace(api=Engine(IMAGE), close=lambda: None)
    monkeypatch.setattr("hvdcloud.engine.connect", lambda **_: here)
    monkeypatch.setattr(images, "laptop_registry", none)
    monkeypatch.setattr(Host, "engine", lambda host, **_: found[host.name])
    return found


def bring() -> list[str]:
    """The steps that were told."""
    told: list[NodeProgress] = []
    hosts = Hosts([SshHostConfig(host="gpu1"), SshHostConfig(host="gpu2")])
    images.bring(IMAGE, hosts, hosts.all, on_progress=told.append)
    return [f"{each.object}: {each.step}" for each in told]


def test_the_whole_image_is_sent_to_the_hosts_that_lack_it(there: dict[str, Engine]) -> None:
    there["gpu2"].images.add(IMAGE)
    assert bring()[1:] == ["gpu1: sending the whole image, because there is none", "gpu1: has the image"]
    assert (there["gpu1"].images, there["gpu1"].loads, there["gpu2"].loads) == ({IMAGE}, 1, 0)
    assert bring() == []


@pytest.mark.parametrize(
    ("said", "kind"), [("write /x: no space left on device", CapacityError), ("unexpected EOF", ImageError)]
)
def test_the_error_of_a_host_names_it(there: dict[str, Engine], said: str, kind: type[Exception]) -> None:
    there["gpu2"].error = said
    with pytest.raises(kind, match=f"gpu2.*{said}"):
        bring()
    assert IMAGE in there["gpu1"].images
