"""Fixtures that every kind of test may use."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.support.engine_slots import needs_engine, needs_machines, no_engine, slots, turn

# A shell has what it runs in the background ignore Ctrl-C, which would be passed on to every command under test.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests start the node program hundreds of times, which takes half as long when it was compiled before.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shim of setuptools, of which nodes and users know nothing, is asked for each module that a process loads.
os.environ["SETUPTOOLS_USE_DISTUTILS"] = "stdlib"

# A docker command with BuildKit, where the machine's has none: tools/engine.sh.
os.environ["PATH"] = f"{Path(__file__).parents[1] / '.cache' / 'docker'}{os.pathsep}{os.environ['PATH']}"

# What the terminal of whoever starts the tests is like; a test says what its own is like.
for variable in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "COLORTERM"):
    os.environ.pop(variable, None)

BUILD_SECONDS = 1800
"""For a test that may have to build an image first."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: Sequence[Any]) -> None:
    """The processes begin with the modules of the tests loaded."""
    from tests.support.warm import python_of_tests

    for spec in specs:
        spec.python = python_of_tests()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One of the processes runs tests that do not use the engine, and the rest those that do; then it helps them."""
    from tests.support.schedule import EngineSlots

    config.option.loadscopereorder = False
    processes = len(config.option.tx)
    return EngineSlots(config, log, slots=slots(processes - 1), late_slots=slots(processes))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is collected stays until the end: the garbage collector does not look at it again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that build images have more time; with several processes, what takes longest comes first.

    First those with machines, then those with TensorFlow's image, those at the engine and files of many tests.
    """
    for item in items:
        # The first of them builds the images, which may compile Horovod.
        if "images" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("timeout"):
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
def images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """References of the images that any test of this session uses, by the fixture that names them.

    All are built before the first of these tests: none has to be in time while Horovod is compiled for another one.
    """
    used = {name for item in request.session.items for name in getattr(item, "fixturenames", ())} & _FRAMEWORKS.keys()
    # Made here: two threads that ask for it first would each make one, and pytest keeps the last.
    tmp_path_factory.getbasetemp()
    with ThreadPoolExecutor() as pool:
        built = pool.map(lambda name: _built(_FRAMEWORKS[name], tmp_path_factory), used)
        return dict(zip(used, built, strict=True))


@pytest.fixture(scope="session")
def image(images: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The torch CPU image with scikit-learn: built once, and found by its content the next time."""
    # A test that asks for it while it runs is not known to `images`.
    return images.get("image") or _built("torch", tmp_path_factory)


@pytest.fixture(scope="session")
def tensorflow_image(images: Mapping[str, str]) -> str:
    """The TensorFlow CPU image with scikit-learn, likewise."""
    return images["tensorflow_image"]


_FRAMEWORKS: Mapping[str, Literal["torch", "tensorflow"]] = {"image": "torch", "tensorflow_image": "tensorflow"}


def _built(framework: Literal["torch", "tensorflow"], tmp_path_factory: pytest.TempPathFactory) -> str:
    from hvdcloud.config.model import ImageConfig
    from hvdcloud.image.build.builder import build

    project = tmp_path_factory.mktemp(framework)
    (project / "requirements.txt").write_text("scikit-learn\n")
    return build(ImageConfig(framework=framework), project_dir=project).reference
