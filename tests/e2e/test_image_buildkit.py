"""BuildKit on the real engine: what of a build is in the image, what is kept for the next, and what fails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import ImageNotFound

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build import buildkit
from hvdcloud.image.engine_stream import BuildEvent, ignore, inspected
from hvdcloud.image.plan.steps import plan_image
from tests.support.engines import default_gateway
from tests.support.harness import until
from tests.support.http_server import Asked, Reply, answering
from tests.support.small_image import NAME, small
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.engine

PIP_CACHE = "type=cache,target=/root/.cache/pip/http-v2,id=hvdcloud-pip"


@pytest.fixture
def reference(engine: Any) -> Iterator[str]:
    """A name for the test's image, which is removed after it."""
    name = f"{NAME}:{os.getpid()}"
    yield name
    with contextlib.suppress(ImageNotFound):
        engine.images.remove(name, force=True)


def test_an_image_has_its_labels_and_nothing_of_the_stages_that_are_thrown_away(engine: Any, reference: str) -> None:
    step = small(arguments={"WORD": "hello"}, labels={"hvdcloud-image": "t"}, reference=reference)
    events: list[BuildEvent] = []
    buildkit.find(engine.api).build(step, progress=events.append)
    assert any(event.kind == "step" and "RUN apt-get update" in event.text for event in events)
    assert engine.images.get(reference).labels["hvdcloud-image"] == "t"
    listing = "cat /word; stat -c '%a %u:%g' /opt/made/here; ls -A /mnt /var/cache/apt; test ! -e /opt/secret"
    said = engine.containers.run(reference, ["-c", listing], entrypoint="sh", remove=True).decode()
    assert said == "hello\n640 7:8\n/mnt:\n\n/var/cache/apt:\n"
    assert "hunter2" not in json.dumps(engine.images.get(reference).history())


def test_a_wheel_is_downloaded_once_for_many_builds(engine: Any, image: str, reference: str, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, project="hvdcloud_cached", content=f"# {tmp_path}\n")
    asked: list[str] = []

    def index(request: Asked) -> Reply:
        asked.append(request.path)
        if request.path.endswith(".whl"):
            return Reply(wheel.read_bytes(), headers={"Cache-Control": "max-age=365000000, immutable, public"})
        link = f'<a href="/{tmp_path.name}/{wheel.name}">{wheel.name}</a>'
        return Reply(link.encode(), headers={"Content-Type": "text/html"})

    (tmp_path / "requirements.txt").write_text("scikit-learn\n")
    builder = plan_image(ImageConfig(), project_dir=tmp_path).steps[0].reference
    gateway = default_gateway(engine)
    with answering(index, host=gateway) as url:
        for number in range(2):
            # Plain HTTP is cached for trusted hosts only.
            step = small(
                dockerfile=f"FROM {builder}\nENV PIP_TRUSTED_HOST={gateway} NUMBER={number}\n"
                f"RUN --mount={PIP_CACHE} pip install --index-url {url}/simple --target /opt/new hvdcloud_cached\n",
                reference=reference,
            )
            buildkit.find(engine.api).build(step, progress=ignore)
    assert [path for path in asked if path.endswith(".whl")] == [f"/{tmp_path.name}/{wheel.name}"]
    assert [path for path in asked if path.endswith("/")] == ["/simple/hvdcloud-cached/"] * 2


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
        assert process.stdout is not None
        until(lambda: process.stdout.readline() == "begun\n", what="the build")
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
