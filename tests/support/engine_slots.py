"""Who uses the Docker engine when: a few files of tests side by side, and some tests alone."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

GIB = 1 << 30
LOCKS = Path(tempfile.gettempdir())
# A build waits while another one compiles Horovod.
_WAITS = re.compile(r"\b(?:tensorflow_)?image: str\b|\bcarry_out\b|\bengine\(alone=True\)")
_MARK = re.compile(r"^(?:pytestmark = \[?|@| {4})pytest\.mark\.engine\b", re.MULTILINE)


@cache
def needs_engine(file: Path) -> bool:
    """Whether a test in the file has the mark `engine`."""
    return _MARK.search(file.read_text()) is not None


@cache
def needs_machines(file: Path) -> bool:
    """Whether tests in the file have the fixture `earlier`, for clouds whose VMs are machines."""
    return "earlier: Earlier" in file.read_text()


@cache
def needs_images(file: Path) -> bool:
    """Whether tests in the file wait for the images that all of them share, or for all other tests."""
    return _WAITS.search(file.read_text()) is not None


def slots(most: int) -> int:
    """How many files of tests may use the engine at the same time: the largest clusters have 5 nodes of 1 GiB each.

    Args:
        most: as many, where memory suffices.
    """
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(most, (memory - 2 * GIB) // (5 * GIB)))


@contextmanager
def turn(folder: Path = LOCKS, *, alone: bool) -> Iterator[None]:
    """Use the engine for the block, beside other tests or alone.

    A test that has to be alone is not overtaken: those that come later wait behind it.

    Args:
        folder: holds the locks.
    """
    with ExitStack() as stack:
        gate = stack.enter_context((folder / "hvdcloud-tests-gate.lock").open("w"))
        room = stack.enter_context((folder / "hvdcloud-tests-room.lock").open("w"))
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        # A process that a test has forked may still have the file open.
        stack.callback(fcntl.flock, room, fcntl.LOCK_UN)
        yield


@contextmanager
def no_engine() -> Iterator[None]:
    """Refuse every connection to the engine, also of commands that are started in the block."""
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = "unix:///this-test-has-no-pytest.mark.engine"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DOCKER_HOST"]
        else:
            os.environ["DOCKER_HOST"] = before
