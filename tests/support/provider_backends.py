"""Where each provider makes its nodes in the tests, and how something is made to go wrong there."""

from __future__ import annotations

import dataclasses
import json
import secrets
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.config.ssh_hosts import SshMachinesConfig
from hvdcloud.providers.base import Provider
from hvdcloud.providers.gce.api.client import ComputeClient
from hvdcloud.providers.local.provider import LocalProvider
from hvdcloud.providers.ssh.provider import SshProvider
from hvdcloud.remote.keys import new_key_pair
from tests.standins.compute import Emulator
from tests.support.gce_bench import A, Bench
from tests.support.harness import labelled
from tests.support.ssh_hosts import SshHost, SshHosts


class Workshop(Protocol):
    """What the contract's tests need of a provider's surroundings."""

    provider: Provider

    def spec(self) -> ClusterSpec:
        """Two nodes under a name of their own."""

    def left(self, cluster: str) -> list[str]:
        """Everything that exists of a cluster, as the engine or the cloud itself sees it."""

    def stranger(self, name: str) -> AbstractContextManager[None]:
        """A machine of another user that has this name; it must be there at the end of the block."""

    def broken(self, spec: ClusterSpec, *, says: str) -> AbstractContextManager[ClusterSpec]:
        """Nodes that give up while they boot, after having said something."""

    def silent(self, spec: ClusterSpec) -> AbstractContextManager[ClusterSpec]:
        """Nodes that never get ready."""

    def stop(self, name: str) -> None:
        """Switch a node off from outside; it exists, and does not run."""

    def lose(self, name: str) -> None:
        """Make a node vanish."""


def new_spec(image: str, *, bucket: str = "gs://bucket/t", nodes: int = 2) -> ClusterSpec:
    """A cluster under a name of its own."""
    return ClusterSpec(
        name=f"t-{secrets.token_hex(4)}",
        id=secrets.token_hex(3),
        owner="tester",
        nodes=nodes,
        image=image,
        bucket=bucket,
        authorized_key=new_key_pair("test").public,
        created=datetime.now(timezone.utc),
    )


@dataclasses.dataclass(frozen=True, slots=True)
class NodeImages:
    """An image, and two of whose nodes none gets ready."""

    good: str
    broken: str
    silent: str

    def all(self) -> tuple[str, ...]:
        return self.good, self.broken, self.silent


@contextmanager
def node_images(engine: Any, image: str, *, says: str) -> Iterator[NodeImages]:
    """Made of the image.

    Args:
        says: what nodes of the broken one say before they end.
    """
    with (
        _image_that_runs(engine, image, "sh", "-c", f"echo {says} >&2; exit 3") as broken,
        _image_that_runs(engine, image, "sleep", "1000") as silent,
    ):
        yield NodeImages(image, broken, silent)


class _OnEngines:
    """What the two workshops on Docker engines share."""

    def __init__(self, images: NodeImages) -> None:
        self._images = images

    @contextmanager
    def broken(self, spec: ClusterSpec, *, says: str) -> Iterator[ClusterSpec]:
        yield dataclasses.replace(spec, image=self._images.broken)

    @contextmanager
    def silent(self, spec: ClusterSpec) -> Iterator[ClusterSpec]:
        yield dataclasses.replace(spec, image=self._images.silent)


class LocalWorkshop(_OnEngines):
    """Containers on this machine's engine."""

    def __init__(self, engine: Any, images: NodeImages, folder: Path) -> None:
        super().__init__(images)
        self._engine = engine
        self._folder = folder
        self.provider: Provider = LocalProvider(engine)

    def spec(self) -> ClusterSpec:
        return new_spec(self._images.good, bucket=(self._folder / "bucket").as_uri())

    def left(self, cluster: str) -> list[str]:
        return labelled(self._engine, cluster)

    @contextmanager
    def stranger(self, name: str) -> Iterator[None]:
        container = self._engine.containers.create(self._images.good, name=name, entrypoint="true")
        try:
            yield
            container.reload()
            assert container.name == name
        finally:
            container.remove(force=True)

    def stop(self, name: str) -> None:
        self._engine.containers.get(name).kill()

    def lose(self, name: str) -> None:
        self._engine.containers.get(name).remove(force=True)


@contextmanager
def _image_that_runs(engine: Any, image: str, *argv: str) -> Iterator[str]:
    """The image with another program in the node program's place."""
    container = engine.containers.create(image)
    try:
        changed = container.commit(
            repository=f"hvdcloud-test/{secrets.token_hex(4)}", tag="1", changes=f"ENTRYPOINT {json.dumps(argv)}"
        )
    finally:
        container.remove()
    try:
        yield changed.tags[0]
    finally:
        engine.images.remove(changed.id, force=True)


class SshWorkshop(_OnEngines):
    """Containers on machines that are reached by SSH and have the images; the second one through the first."""

    def __init__(self, hosts: SshHosts, images: NodeImages) -> None:
        super().__init__(images)
        self._hosts = hosts
        first, second, *others = (host.name for host in hosts.hosts)
        named = [first, {"host": second, "jump": first}, *others]
        self.provider: Provider = SshProvider(SshMachinesConfig.model_validate({"hosts": named}))

    def spec(self) -> ClusterSpec:
        return new_spec(self._images.good)

    def left(self, cluster: str) -> list[str]:
        return self._hosts.left(cluster)

    @contextmanager
    def stranger(self, name: str) -> Iterator[None]:
        host = self._host_of(name)
        host.docker("create", "--name", name, "--entrypoint", "true", self._images.good)
        try:
            yield
            assert name in host.containers()
        finally:
            host.docker("rm", "-f", name)

    def stop(self, name: str) -> None:
        self._host_of(name).docker("kill", name)

    def lose(self, name: str) -> None:
        self._host_of(name).docker("rm", "-f", name)

    def _host_of(self, node: str) -> SshHost:
        """Nodes are on the hosts in their order."""
        return self._hosts.hosts[int(node.rpartition("-")[2])]


class GceWorkshop:
    """VMs of the stand-in of Compute Engine that are no more than records."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator
        self._bench = Bench(emulator)
        self.provider: Provider = self._bench.another(zones=[A], gpu=None)

    def spec(self) -> ClusterSpec:
        return self._bench.spec()

    def left(self, cluster: str) -> list[str]:
        return [each for each in self._emulator.state.left() if cluster in each]

    @contextmanager
    def stranger(self, name: str) -> Iterator[None]:
        client = self._bench.client()
        body = {
            "count": "1",
            "minCount": "1",
            "perInstanceProperties": {name: {}},
            "instanceProperties": {
                "machineType": "n1-standard-1",
                "disks": [{"boot": True, "autoDelete": True, "initializeParams": {"sourceImage": _image(client)}}],
                "networkInterfaces": [{"network": "global/networks/default"}],
            },
        }
        client.wait(client.bulk_insert(A, body, str(uuid.uuid4())), deadline=float("inf"))
        yield
        assert name in [vm["name"] for vm in self._emulator.state.instances()]
        self.lose(name)

    @contextmanager
    def broken(self, spec: ClusterSpec, *, says: str) -> Iterator[ClusterSpec]:
        self._emulator.faults.add({"fail_ready": {"step": "start", "error": says}}, instance=spec.node_name(1))
        yield spec
        self._emulator.faults.clear()

    @contextmanager
    def silent(self, spec: ClusterSpec) -> Iterator[ClusterSpec]:
        self._emulator.faults.add({"hang_ready": True}, instance=spec.node_name(1))
        yield spec
        self._emulator.faults.clear()

    def stop(self, name: str) -> None:
        self._emulator.kill(A, name)

    def lose(self, name: str) -> None:
        client = self._bench.client()
        operation = client.delete("Instances", str(uuid.uuid4()), zone=A, instance=name)
        assert operation is not None
        client.wait(operation, deadline=float("inf"))


def _image(client: ComputeClient) -> str:
    link: str = client.image_from_family("cos-cloud", "cos-125-lts")["selfLink"]
    return link[link.index("projects/") :]
