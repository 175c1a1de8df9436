"""Fixtures that every kind of test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The developer's own HVDCLOUD_… variables stay out of the tests."""
    for name in os.environ:
        if name.startswith("HVDCLOUD_"):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The Docker engine's client."""
    from hvdcloud.engine import connect

    client = connect()
    yield client
    client.close()


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The torch CPU image with scikit-learn: built once, and found by its content the next time."""
    from hvdcloud.config import ImageConfig
    from hvdcloud.image.build import build
    from hvdcloud.image.stream import ignore

    project = tmp_path_factory.mktemp("image")
    (project / "requirements.txt").write_text("scikit-learn\n")
    return build(ImageConfig(), project_dir=project, progress=ignore).reference
