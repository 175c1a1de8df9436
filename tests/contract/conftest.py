"""Fixtures of the contract tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.terraform import place

# pytest-xdist's own process loads this file too, and runs no test: what takes time is loaded by the fixtures.
if TYPE_CHECKING:
    from tests.standins.compute import Emulator
    from tests.support.compute_clients import Plain
    from tests.support.gce_bench import Bench
    from tests.support.harness import Project

__all__ = ["place"]


@pytest.fixture
def emulator() -> Iterator[Emulator]:
    """Of Compute Engine, with records in place of machines; nothing is left in it after the test."""
    from tests.standins.compute import Emulator

    with Emulator() as emulator:
        yield emulator
        assert emulator.state.left() == []


@pytest.fixture
def project(emulator: Emulator, tmp_path: Path) -> Project:
    """A project of a user who is logged in to the emulator."""
    from tests.support.harness import project_in

    project = project_in(tmp_path, "digits")
    project.environ = {
        "GOOGLE_APPLICATION_CREDENTIALS": str(emulator.credentials_file(tmp_path / "key.json")),
        "HOME": str(tmp_path),
        "HVDCLOUD_GOOGLE_ENDPOINT": emulator.url,
    }
    return project


@pytest.fixture
def plain(emulator: Emulator) -> Iterator[Plain]:
    from tests.support.compute_clients import Plain

    with Plain(emulator) as client:
        yield client
    emulator.reset()


@pytest.fixture
def bench(emulator: Emulator) -> Bench:
    from tests.support.gce_bench import Bench

    return Bench(emulator)
