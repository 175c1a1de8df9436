"""Where a build can happen: Cloud Build, a bucket and a registry, each a stand-in or real, on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.standins.cloudbuild.server import CloudBuildServer
from tests.standins.registry import running_registry
from tests.standins.storage import StorageServer, running_server

PROJECT = "test-project"


@dataclass(frozen=True)
class Place:
    """What a project has."""

    server: CloudBuildServer
    storage: StorageServer
    registry: str
    """127.0.0.1:PORT"""
    environ: dict[str, str]
    """What a client needs to find the credentials and the bucket."""

    def objects(self) -> list[str]:
        """The names of everything in the bucket."""
        return list(self.storage.store.bucket("bucket").names)


@contextmanager
def building_place(folder: Path, **options: Any) -> Iterator[Place]:
    """A place for the block.

    Args:
        folder: an empty one.
        options: for `CloudBuildServer`.
    """
    for name in ("registry", "bucket"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        registry = stack.enter_context(running_registry(folder / "registry", {}))
        storage = stack.enter_context(running_server(folder / "bucket"))
        server = stack.enter_context(CloudBuildServer(storage.url, project=PROJECT, **options))
        environ = {
            "GOOGLE_APPLICATION_CREDENTIALS": str(server.credentials_file(folder / "key.json")),
            "STORAGE_EMULATOR_HOST": storage.url,
        }
        yield Place(server=server, storage=storage, registry=registry, environ=environ)
