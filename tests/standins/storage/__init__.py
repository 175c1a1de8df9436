"""A strict stand-in of the Cloud Storage JSON API, for tests. See README.md."""

from __future__ import annotations

from tests.standins.storage.server import StorageServer, running_server

__all__ = ["StorageServer", "running_server"]
