"""Fixtures that every kind of test may use."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

# End-to-end tests that start no container of ours, and contract tests that do.
WITHOUT_NODES = frozenset(
    {"test_doctor", "test_gce_costs", "test_gce_faults", "test_gce_killed", "test_many_nodes", "test_setup"}
)
WITH_ENGINE = frozenset(
    {"test_cloudbuild", "test_cloudbuild_server", "test_emulator_machines", "test_provider", "test_sbom_registry"}
)


# A shell has what it runs in the background ignore Ctrl-C, which would be passed on to every command under test.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `pytest -n 2`, what fills the machine with containers runs one after the other, and the rest beside it.

    The mark xdist_group of pytest-xdist 3.8 does nothing with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling

    class OneAtTheEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.partition("::")[0])
            alone = file.stem in WITH_ENGINE or (file.parent.name == "e2e" and file.stem not in WITHOUT_NODES)
            return "engine" if alone else str(file)

    return OneAtTheEngine(config, log)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Remove what a killed test session left at the engine, unless another one runs there now."""
    if hasattr(session.config, "workerinput"):
        return
    from hvdcloud.errors import HvdcloudError
    from tests.support.harness import remove_leftovers, share_engine

    # Without an engine there is nothing to remove, and the tests that need none can run.
    with contextlib.suppress(HvdcloudError):
        for name in share_engine(remove_leftovers):
            session.config.get_terminal_writer().line(f"removed {name}, which a killed test session left")


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
    from hvdcloud.config.model import ImageConfig
    from hvdcloud.image.build.builder import build
    from hvdcloud.image.engine_stream import ignore

    project = tmp_path_factory.mktemp(framework)
    (project / "requirements.txt").write_text("scikit-learn\n")
    return build(ImageConfig(framework=framework), project_dir=project, progress=ignore).reference
