"""A stateful stand-in of the Cloud Build API that really builds, for tests. See README.md."""

from __future__ import annotations

from tests.standins.cloudbuild.server import BUILDER, CloudBuildServer

__all__ = ["BUILDER", "CloudBuildServer"]
