"""Fixtures that every kind of test may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import pytest

# End-to-end tests that start no container of ours; each of these files may run beside everything else.
WITHOUT_NODES = frozenset(
    {"test_doctor", "test_gce_costs", "test_gce_faults", "test_gce_killed", "test_many_nodes", "test_setup"}
)


ENGINE = frozenset({"engine", "image", "tensorflow_image"})
"""Fixtures."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `pytest -n 2 --dist loadgroup`, what fills the machine with containers runs one after the other."""
    for item in items:
        e2e = item.path.parent.name == "e2e"
        if e2e and item.path.stem in WITHOUT_NODES:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
        elif e2e or item.get_closest_marker("engine") or ENGINE & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.xdist_group("engine"))


@pytest.fixture(autouse=True)
def no_configuration_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The developer's own HVDCLOUD_… variables and price table stay out of the tests."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state-home"))
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
    return _built("torch", tmp_path_factory)


@pytest.fixture(scope="session")
def tensorflow_image(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The TensorFlow CPU image with scikit-learn, likewise."""
    return _built("tensorflow", tmp_path_factory)


def _built(framework: Literal["torch", "tensorflow"], tmp_path_factory: pytest.TempPathFactory) -> str:
    from hvdcloud.config import ImageConfig
    from hvdcloud.image.build import build
    from hvdcloud.image.stream import ignore

    project = tmp_path_factory.mktemp(framework)
    (project / "requirements.txt").write_text("scikit-learn\n")
    return build(ImageConfig(framework=framework), project_dir=project, progress=ignore).reference
