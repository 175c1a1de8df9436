"""BuildKit on the real engine: what of a build is in the image, what is kept for the next, and what fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.image.engine_stream import inspected
from tests.support.harness import until
from tests.support.small_image import NAME

pytestmark = pytest.mark.engine


BUILD = """
from hvdcloud import engine
from hvdcloud.image.build import buildkit
from tests.support.small_image import small

step = small(dockerfile="FROM debian:bookworm-slim\\nRUN echo begun; exec sleep {seconds}\\n")
buildkit.find(engine.connect().api).build(step, progress=lambda event: print(event.text, flush=True))
"""


def test_a_build_that_is_interrupted_leaves_nothing(engine: Any) -> None:
    seconds = f"300.{os.getpid()}"
    command = [sys.executable, "-c", BUILD.replace("{seconds}", seconds)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        out = process.stdout
        assert out is not None
        until(lambda: out.readline() == "begun\n", what="the build")
        until(lambda: running(seconds), what="the step's process")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=80)
    finally:
        process.kill()
        process.communicate()
    until(lambda: not running(seconds), what="the end of the build's process")
    assert not running("--tag", f"{NAME}:1"), "the docker command is still there"
    assert inspected(engine.api, f"{NAME}:1") is None


def running(*words: str) -> list[str]:
    """Command lines of this machine with all the words, but Python's."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if all(word in line for word in words) and "-c" not in line:
            found.append(" ".join(line))
    return found
