"""A cloud on this machine: a stand-in of Compute Engine; a registry and a bucket with access control."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdcloud.providers.gce.ops.node_rights import RECORDS
from tests.standins.compute import Emulator
from tests.standins.compute.errors import ApiError
from tests.standins.compute.machines import Machines
from tests.standins.registry import (
    free_port,
    google_like_registry,
    is_free,
    share_layers,
    storage_of,
)
from tests.standins.storage import StorageServer, running_server
from tests.standins.storage.iam import Iam
from tests.support.harness import Project, project_in
from tests.support.http_server import Reply, answering

PROJECT = "test-project"
NODES_ACCOUNT = f"nodes@{PROJECT}.iam.gserviceaccount.com"
"""The VMs' service account: may read images and use the bucket, and nothing else unless `emulator.access` allows it."""
SETUP_ACCOUNT = f"hvdcloud@{PROJECT}.iam.gserviceaccount.com"
"""The one that `hvdcloud setup` makes, likewise."""
LAPTOP = "user:laptop@example.com"
_NODES = [f"serviceAccount:{each}" for each in (NODES_ACCOUNT, SETUP_ACCOUNT)]
BUCKET_POLICY: Sequence[dict[str, Any]] = [
    {"role": "roles/storage.objectUser", "members": [LAPTOP]},
    {"role": "roles/storage.objectCreator", "members": _NODES},
    {"role": "roles/storage.objectViewer", "members": _NODES},
    {"role": "roles/storage.objectUser", "members": _NODES, "condition": {"expression": RECORDS}},
]
"""As terraform/ makes it."""


@dataclass
class Cloud:
    """What a person with a project has."""

    emulator: Emulator
    machines: Machines | None
    storage: StorageServer
    registry: str
    """127.0.0.1:PORT, here and on the machines."""
    environ: dict[str, str]
    """What `hvdcloud` needs to find all of it."""

    def project(self, root: Path, name: str, *, gce: dict[str, Any] | None = None, **settings: Any) -> Project:
        """A project in a new folder that trains on two VMs with a T4 each."""
        project = project_in(
            root,
            name,
            **{
                "provider": "gce",
                "image": {"repository": f"{self.registry}/hvdcloud/digits"},
                "checkpoints": {"bucket": "gs://bucket/runs", "keep_every": 0.2},
                "gce": {
                    "project": PROJECT,
                    "machine_type": "n1-standard-2",
                    "gpu": {"type": "nvidia-tesla-t4", "count": 1},
                    "service_account": NODES_ACCOUNT,
                    **(gce or {}),
                },
                **settings,
            },
        )
        project.environ.update(self.environ)
        return project

    def left(self) -> list[str]:
        """Everything that Compute Engine still holds."""
        return list(self.emulator.state.left())


@dataclass(frozen=True)
class Earlier:
    """What several clouds, one after the other, have in common: each layer of an image is packed once.

    A second push of it finds that it exists, and so does a pull by a machine. Images are every cloud's own.
    """

    storage: Path
    """Layers that a registry has."""
    port: int
    """The registry's: the engine remembers by it which layers the registry has."""


_KEPT = Path(tempfile.gettempdir()) / f"hvdcloud-tests-{os.getuid()}"
_KEPT_BYTES = 4 << 30
"""Of layers, among them those of images that are no longer used."""


@contextmanager
def kept_layers(folder: Path = _KEPT) -> Iterator[Earlier | None]:
    """The layers that earlier test sessions have pushed, for this process alone; None: another one has them now.

    To pack the layers of an image takes a core a minute.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    storage, port = folder / "pushed", folder / "port"
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        if sum(file.stat().st_size for file in storage.rglob("*") if file.is_file()) > _KEPT_BYTES:
            shutil.rmtree(storage)
        storage.mkdir(exist_ok=True)
        if not port.exists() or not is_free(int(port.read_text())):
            port.write_text(str(free_port()))
        yield Earlier(storage, int(port.read_text()))


@contextmanager
def running_cloud(
    folder: Path,
    *,
    machines: bool = True,
    earlier: Earlier | None = None,
    **options: Any,
) -> Iterator[Cloud]:
    """A cloud for the block; afterwards nothing of it is left on the engine.

    Args:
        machines: every VM is a real machine; else nothing but a record, whose sshd answers nowhere.
        earlier: what clouds before this one have pushed; machines have the layers of their images from the start.
        options: for `Emulator`; without machines, `backing` too.
    """
    port = earlier.port if earlier else free_port()
    token_port, api_port = free_port(), free_port()
    for name in ("registry", "bucket"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        if earlier:
            images = storage_of(folder / "registry")
            share_layers(earlier.storage, images)
            stack.callback(share_layers, images, earlier.storage)
        ports = [port, token_port, api_port]
        lent = earlier is not None
        backing = Machines(loopback_ports=ports, lent_layers=lent) if machines else None
        # 127.0.0.1 is the API's address for the machines as well: nodes may delete themselves.
        served = {"host": "0.0.0.0", "port": api_port} if machines else {}
        # Machines are reached from this one's private address, so they have no external one.
        options = {"backing": backing, **served, **options}
        emulator = stack.enter_context(Emulator(project=PROJECT, **options))
        here = backing.gateway if backing else "127.0.0.1"

        def account(token: str) -> str:
            try:
                return emulator.keys.owner(f"Bearer {token}")
            except ApiError:
                return ""

        def registry_roles(token: str) -> Sequence[str] | None:
            roles = {
                emulator.keys.email: ("pull", "push"),
                NODES_ACCOUNT: ("pull",),
                SETUP_ACCOUNT: ("pull",),
                "": None,
            }
            return roles.get(account(token), ())

        addresses = tuple({"127.0.0.1", here})
        stack.enter_context(
            google_like_registry(
                folder / "registry", registry_roles, addresses=addresses, port=port, token_port=token_port
            )
        )
        storage = stack.enter_context(
            running_server(
                folder / "bucket",
                host=here,
                # Google's library has no credentials for another endpoint than Google's: the laptop's requests.
                authorize=lambda token: not token or account(token) in (NODES_ACCOUNT, SETUP_ACCOUNT),
                iam=Iam(lambda token: f"serviceAccount:{account(token)}" if token else LAPTOP, BUCKET_POLICY),
            )
        )
        said = (here if machines else "198.51.100.7").encode()
        address = stack.enter_context(answering(lambda _: Reply(said)))
        environ = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(emulator.credentials_file(folder / "key.json")),
            "STORAGE_EMULATOR_HOST": storage.url,
            "HVDCLOUD_GOOGLE_ENDPOINT": emulator.url,
            "HVDCLOUD_GOOGLE_REGISTRIES": f"127.0.0.1:{port}",
            "HVDCLOUD_ADDRESS_URL": address,
        }
        yield Cloud(
            emulator=emulator,
            machines=backing,
            storage=storage,
            registry=f"127.0.0.1:{port}",
            environ=environ,
        )
