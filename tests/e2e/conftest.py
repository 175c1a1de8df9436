"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from hvdcloud.image.build.buildkit import BUILDER_VARIABLE, find_builder


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What all clouds with machines have in common, also those of the session before."""
    from tests.standins.registry import free_port
    from tests.support.cloud import Earlier, kept_layers

    with kept_layers() as kept:
        yield kept or Earlier(tmp_path_factory.mktemp("pushed"), free_port())


@pytest.fixture
def buildkit(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """BuildKit builds; with whichever docker command on PATH has it."""
    monkeypatch.delenv(BUILDER_VARIABLE, raising=False)
    path = os.environ["PATH"]
    for folder in path.split(os.pathsep):
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{path}")
        if find_builder(engine.api) is not None:
            monkeypatch.setenv(BUILDER_VARIABLE, "buildkit")
            return
    pytest.skip("no docker command here has BuildKit: neither buildx nor a version from 20.10 to 22")


@pytest.fixture(params=["classic", "buildkit"])
def builder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What builds: either of the two."""
    name: str = request.param
    if name == "buildkit":
        request.getfixturevalue("buildkit")
    else:
        monkeypatch.setenv(BUILDER_VARIABLE, name)
    return name
