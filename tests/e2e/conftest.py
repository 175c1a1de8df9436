"""Fixtures of the end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What all clouds with machines have in common, also those of the session before."""
    from tests.standins.registry import free_port
    from tests.support.cloud import Earlier, kept_layers

    with kept_layers() as kept:
        yield kept or Earlier(tmp_path_factory.mktemp("pushed"), free_port())


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory, earlier: Any, image: str) -> Iterator[Any]:
    """A cloud with machines, of which nothing is left when a file's tests are over."""
    from tests.support.cloud import running_cloud

    with running_cloud(tmp_path_factory.mktemp("cloud"), earlier=earlier) as cloud:
        yield cloud
        assert cloud.left() == []


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, engine: Any) -> Iterator[Any]:
    """A cloud whose VMs are records: tests/support/gce_records.py."""
    from tests.support.gce_records import records_cloud

    with records_cloud(tmp_path_factory.mktemp("cloud"), engine) as records:
        yield records


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry that is open to everybody: 127.0.0.1:PORT."""
    from tests.standins.registry import running_registry

    with running_registry(tmp_path_factory.mktemp("registry"), {}) as host:
        yield host
