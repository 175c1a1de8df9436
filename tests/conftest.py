"""Fixtures that every kind of test may use."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.prepare import built

# A shell has what it runs in the background ignore Ctrl-C, which would be passed on to every command under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A docker command with BuildKit, where the machine's has none: tools/engine.sh.
os.environ["PATH"] = f"{Path(__file__).parents[1] / '.cache' / 'docker'}{os.pathsep}{os.environ['PATH']}"

# What the terminal of whoever starts the tests is like; a test says what its own is like.
for variable in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM"):
    os.environ.pop(variable, None)

BUILD_SECONDS = 1800
"""For a test that may have to build an image first, where `python -m tests.prepare` has not."""
IMAGES = ("image", "tensorflow_image", "torchrun_image")
"""Fixtures that are images."""
LONGEST = ("test_elastic", "test_gce_provider", "test_setup", "test_terraform_module")
"""Files that take minutes, of one process: what begins last is what everything else is waited for with."""
NIGHTLY = ("witness",)
"""Folders whose tests `make nightly` runs."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is nightly, what may take long, and with several processes: what one of them runs together, and what first.

    A file is run by one process, but component tests, which mostly wait, are given out one by one. Files with
    machines follow one another in one process, where what the first has pushed and pulled is there. They come first,
    then what takes longest, then the other files with the mark `engine`.
    """
    machines = {item.path for item in items if "earlier" in getattr(item, "fixturenames", ())}
    engine = {item.path for item in items if item.get_closest_marker("engine")}
    for item in items:
        if item.path.parent.name in NIGHTLY:
            item.add_marker(pytest.mark.nightly)
        if item.path in machines:
            item.add_marker(pytest.mark.xdist_group("machines"))
        elif item.path.parent.name != "component":
            item.add_marker(pytest.mark.xdist_group(f"{item.path.parent.name}/{item.path.stem}"))
        # The first of them builds the images, which may compile Horovod.
        builds = not set(IMAGES).isdisjoint(getattr(item, "fixturenames", ()))
        if builds and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))
    items.sort(key=lambda item: (item.path not in machines, item.path.stem not in LONGEST, item.path not in engine))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test without the mark `engine` is not connected to the engine."""
    with contextlib.nullcontext() if item.get_closest_marker("engine") else no_engine():
        return (yield)


@contextlib.contextmanager
def no_engine() -> Iterator[None]:
    """Refuse every connection to the engine, also of commands that are started in the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_HOST", "unix:///this-test-has-no-pytest.mark.engine")
        yield


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
    # Packing the layers of an image takes a minute: what was packed once is kept for the next session.
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tempfile.gettempdir()}/hvdcloud-tests-cache-{os.getuid()}")
    for name in os.environ:
        if name.startswith("HVDCLOUD_"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_signal_left_ignored() -> Iterator[None]:
    """A signal that a test leaves ignored would be ignored by every process that later tests start."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    after = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before, "this test changed how signals are handled"


@pytest.fixture(scope="session")
def engine() -> Iterator[Any]:
    """The Docker engine's client."""
    from hvdcloud.engine import connect

    client = connect()
    yield client
    client.close()


@pytest.fixture(scope="session")
def image() -> str:
    """The torch CPU image with scikit-learn: built once, and found by its content the next time."""
    return built("torch")


@pytest.fixture(scope="session")
def torchrun_image() -> str:
    """The same without Horovod, for the launchers torchrun and each."""
    return built("torch", "torchrun")


@pytest.fixture(scope="session")
def tensorflow_image() -> str:
    """The TensorFlow CPU image with scikit-learn, likewise."""
    return built("tensorflow")
