"""A cloud whose VMs are records, for what real commands do before and after there is an sshd.

The image is one small file, and where a node's sshd should be nothing listens: an `up` that gets as far as ready nodes
ends there, with exit code 5.
"""

from __future__ import annotations

import io
import itertools
import secrets
import tarfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.cluster.model import ClusterSpec
from hvdcloud.image.build.builder import find_plan
from hvdcloud.image.engine_reports import ignore
from hvdcloud.image.publish.transfer import push
from hvdcloud.providers import platform
from hvdcloud.remote.keys import new_key_pair
from tests.standins.compute import BootDelays, Delays, Records
from tests.standins.compute.backing import Instance
from tests.support.cloud import Cloud, running_cloud
from tests.support.configs import load_config
from tests.support.harness import Ended, Project, until
from tests.support.impatient import NO_SSHD

A, B, W = ZONES = ("us-central1-a", "us-central1-b", "us-west1-a")
MAKING = ("bulkInsert", "insert")


class HereRecords(Records):
    """Their external addresses are this machine's, where a connection is refused at once."""

    _hosts = itertools.count()

    def address(self, instance: Instance) -> tuple[str, str | None]:
        internal, external = super().address(instance)
        return internal, external and f"127.77.{next(self._hosts) % 250}.1"


@dataclass
class RecordsCloud:
    """A cloud that is emptied after every test."""

    cloud: Cloud
    repository: str
    """Of the small image, with its tag."""

    def project(self, root: Path, name: str = "t-gce", *, gce: dict[str, Any] | None = None, **more: Any) -> Project:
        """Of two nodes with a T4 each, in the first of three zones that has room."""
        image = {"repository": self.repository, "requirements": None}
        project = self.cloud.project(root, name, image=image, gce={"zones": list(ZONES), **(gce or {})}, **more)
        project.write("train.py", "")
        return replace(project, first=NO_SSHD)

    def fail(self, action: dict[str, Any], **where: Any) -> None:
        """Add to the fault plan."""
        self.cloud.emulator.faults.add(action, **where)

    def left(self) -> list[str]:
        """Everything that costs money or opens a port."""
        return self.cloud.left()

    def there(self) -> list[str]:
        """What a cluster consists of now, in the words of `listed`."""
        world = self.cloud.emulator.state
        with world.lock:
            vms, disks = world.instances(), world.all_disks()
            rules, operations, templates = world.all_firewalls(), world.all_operations(), list(world.templates)
            policies = [name for there in world.resource_policies.values() for name in there]
            groups = list(world.all_groups())
        held = {disk.get("source") for vm in vms for disk in vm["disks"]}
        found = [f"VM {_place(vm)}" for vm in vms]
        found += [f"disk {_place(disk)}" for disk in disks if disk["selfLink"] not in held]
        found += [f"firewall {rule['name']}" for rule in rules]
        found += [f"placement {name}" for name in policies] + [f"template {name}" for name in templates]
        found += [f"group {_place(group.resource)}" for group in groups]
        requests = [request for group in groups for request in group.requests.values() if request.active]
        found += [f"request {_place(request.resource)}" for request in requests]
        found += [
            f"operation {each['name']}"
            for each in operations
            if each["status"] != "DONE" and each["operationType"] in MAKING and "clientOperationId" in each
        ]
        return sorted(found)

    def list_shows_the_truth(self, project: Project) -> None:
        """What `list` says is what exists, from any laptop."""

        def same() -> bool:
            # What is under way continues meanwhile.
            before = self.there()
            return before == listed(project) == self.there()

        until(same, what="list to show what exists")


def listed(project: Project) -> list[str]:
    """Everything that `list` says belongs to the project's cluster; there is no other one."""
    clusters = project.hvdcloud("list", "--json").json["result"]
    assert {cluster["name"] for cluster in clusters} <= {project.name}
    found = [f"VM {node['id']}" for cluster in clusters for node in cluster["nodes"]]
    # `operation NAME (bulkInsert in ZONE, under way)`
    found += [" ".join(other.split()[:2]) for cluster in clusters for other in cluster["other_objects"]]
    return sorted(found)


def another_laptop(project: Project) -> Project:
    """The same project where nothing is known of what was done before."""
    return replace(project, state=project.state.with_name(f"state-{secrets.token_hex(3)}"))


def came_up(ended: Ended) -> Ended:
    """Every node was ready, and then did not answer: there is no sshd. Nothing of it is left, says the command."""
    ended.expect(5)
    assert "does not answer at 127.77." in ended.err
    for node in ("t-gce-0", "t-gce-1"):
        assert f"{node}: ready" in ended.err
    return ended


def make(project: Project, *, age: float = 0.0) -> None:
    """The project's cluster, with every node ready, as another laptop would have made it.

    Args:
        age: seconds since, as its labels say.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in project.environ.items():
            patch.setenv(name, value)
        config = load_config(project.folder / "hvdcloud.yaml")
        provider = platform(config).connect(on_retry=print)
        spec = ClusterSpec(
            name=config.name,
            id=secrets.token_hex(3),
            owner="somebody",
            nodes=config.nodes,
            image=f"{config.image.repository}@sha256:{'0' * 64}",
            bucket=str(config.checkpoints.bucket),
            authorized_key=new_key_pair("test").public,
            created=datetime.now(timezone.utc) - timedelta(seconds=age),
        )
        nodes = provider.create(provider.plan(spec))
        provider.wait_ready(nodes, deadline=time.monotonic() + 60)


@contextmanager
def records_cloud(folder: Path, engine: Any) -> Iterator[RecordsCloud]:
    """The cloud, with the image pushed; fast, save that the nodes are not ready at the first look."""
    backing = HereRecords(BootDelays(ready=0.4))
    delays = Delays(start=0.02, create=0.05, delete=0.05, other=0.02)
    with (
        running_cloud(folder, machines=False, backing=backing, delays=delays) as cloud,
        small_image(engine) as reference,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in cloud.environ.items():
            patch.setenv(name, value)
        repository = f"{cloud.registry}/small:1"
        push(reference, repository, progress=ignore)
        yield RecordsCloud(cloud=cloud, repository=repository)


@contextmanager
def small_image(engine: Any, reference: str | None = None) -> Iterator[str]:
    """An image of one file, other than every earlier one, on the engine for the block; yields its name."""
    reference = reference or f"hvdcloud/t-small:{secrets.token_hex(6)}"
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        content = secrets.token_bytes(1000)
        member = tarfile.TarInfo("data")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    repository, _, tag = reference.partition(":")
    engine.api.import_image_from_data(data.getvalue(), repository=repository, tag=tag)
    image = engine.images.get(reference)
    try:
        yield reference
    finally:
        engine.images.remove(image.id, force=True)


def stands_for_its_image(engine: Any, project: Project) -> AbstractContextManager[str]:
    """A small image, for the block, which stands for the one that a project needs; the real one takes long to push."""
    # No other project needs this. (Comments make no other image.)
    project.write("requirements.txt", f"needed-here-only-{secrets.token_hex(8)}\n")
    config = load_config(project.folder / "hvdcloud.yaml")
    return small_image(engine, find_plan(config.image, project_dir=project.folder).reference)


def _place(resource: dict[str, Any]) -> str:
    return f"{resource['zone'].rpartition('/')[2]}/{resource['name']}"
