"""Fixtures that every kind of test may use."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from tests.support.engine_slots import needs_engine, needs_machines, no_engine, slots, turn

# A shell has what it runs in the background ignore Ctrl-C, which would be passed on to every command under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start the node program hundreds of times, which takes half as long when it was compiled before.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

BUILD_SECONDS = 1800
"""For a test that may have to build an image first."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `pytest -n 3`, two processes run tests that use the engine, and the third the others."""
    from tests.support.schedule import EngineSlots

    config.option.loadscopereorder = False
    return EngineSlots(config, log, slots=slots())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that build images have more time; with several processes, what takes longest comes first.

    First those with machines and those with TensorFlow's image, so that Horovod is compiled before nodes are lost; then
    those at the engine, then files of many tests.
    """
    for item in items:
        images = {"image", "tensorflow_image"}.intersection(getattr(item, "fixturenames", ()))
        # The first of them builds the image, which may compile Horovod.
        if images and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))
    if hasattr(config, "workerinput"):
        tests = Counter(item.path for item in items)
        tensorflow = {item.path for item in items if "tensorflow_image" in getattr(item, "fixturenames", ())}
        items.sort(
            key=lambda item: (
                not needs_machines(item.path),
                item.path not in tensorflow,
                not needs_engine(item.path),
                -tests[item.path],
                item.path,
            )
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test without the mark `engine` is not connected to the engine; with `engine(alone=True)` no other one is."""
    mark = item.get_closest_marker("engine")
    with turn(alone=mark.kwargs.get("alone", False)) if mark else no_engine():
        return (yield)


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
