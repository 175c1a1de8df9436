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
