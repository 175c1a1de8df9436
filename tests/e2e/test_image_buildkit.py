"""BuildKit and the classic builder, on the same engine: the same image, and what only BuildKit does."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from docker.errors import ImageNotFound

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import ImageError
from hvdcloud.image.build.buildkit import find_builder
from hvdcloud.image.build.classic import ClassicBuilder
from hvdcloud.image.engine_stream import ignore, inspected
from hvdcloud.image.plan.steps import Step, plan_image
from tests.support.engines import default_gateway
from tests.support.harness import until
from tests.support.http_server import Asked, Reply, answering
from tests.support.small_image import NAME, small
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.engine


@pytest.fixture
def references(engine: Any) -> Iterator[dict[str, str]]:
    """A name for each builder's image; removed after the test."""
    names = {builder: f"{NAME}:{builder}" for builder in ("classic", "buildkit")}
    yield names
    for name in names.values():
        with contextlib.suppress(ImageNotFound):
            engine.images.remove(name, force=True)


def both(engine: Any, step: Step, references: dict[str, str]) -> None:
    """Builds a step with each builder."""
    builder = find_builder(engine.api)
    assert builder is not None
    builder.build(replace(step, reference=references["buildkit"]), progress=ignore)
    ClassicBuilder(engine.api).build(replace(step, reference=references["classic"]), progress=ignore)


def content(engine: Any, reference: str, folder: str) -> dict[str, tuple[object, ...]]:
    """Everything below a folder of an image: path → type, mode, owner, link and what is in it."""
    found = {}
    container = engine.api.create_container(reference, command=["none"])
    try:
        with tempfile.TemporaryFile() as file:
            chunks = engine.api.export(container) if folder == "/" else engine.api.get_archive(container, folder)[0]
            for chunk in chunks:
                file.write(chunk)
            file.seek(0)
            with tarfile.open(fileobj=file) as archive:
                for member in archive:
                    data = archive.extractfile(member) if member.isfile() else None
                    read = data.read() if data else b""
                    if PurePosixPath(member.name).suffix == ".pyc":
                        # A .pyc remembers when its source was written (PEP 552).
                        read = read[:8] + read[12:]
                    owner = (member.uid, member.gid)
                    sha = hashlib.sha256(read).hexdigest()
                    found[member.name] = (member.type, oct(member.mode), owner, member.linkname, sha)
    finally:
        engine.api.remove_container(container)
    return found


def settings(engine: Any, reference: str) -> dict[str, Any]:
    """What an image says of itself, less what it was built in and `null` or an empty list for nothing."""
    config = engine.api.inspect_image(reference)["Config"]
    names = ("Cmd", "Entrypoint", "Env", "ExposedPorts", "Labels", "User", "Volumes", "WorkingDir", "Healthcheck")
    return {name: config.get(name) or None for name in names}


@pytest.mark.timeout(1800)  # Horovod may have to be compiled once more.
def test_both_builders_make_the_same_image(buildkit: None, engine: Any, references: dict[str, str]) -> None:
    step = small(arguments={"WORD": "hello"}, labels={"hvdcloud-image": "t"}, throw_away="thrown-away")
    both(engine, step, references)
    classic, other = (content(engine, references[builder], "/") for builder in ("classic", "buildkit"))
    assert len(classic) > 1000
    assert classic.keys() ^ other.keys() == set()
    assert {path: (classic[path], other[path]) for path in classic if classic[path] != other[path]} == {}
    assert settings(engine, references["classic"]) == settings(engine, references["buildkit"])
    history = json.dumps(engine.images.get(references["buildkit"]).history())
    assert "hunter2" not in history


def test_both_builders_make_the_same_layer_for_a_project(
    buildkit: None, engine: Any, image: str, references: dict[str, str], tmp_path: Path
) -> None:
    # New to both: one of them might remember a layer from before the newest release of a package.
    (tmp_path / "requirements.txt").write_text(f"regex\ntabulate\n# {uuid.uuid4()}\n")
    step = plan_image(ImageConfig(), project_dir=tmp_path).last
    both(engine, step, references)
    classic, other = (content(engine, references[builder], "/opt/requirements") for builder in references)
    # Python's files, a compiled one and a program.
    for name in ("regex/__init__.py", ".so", "bin/tabulate"):
        assert any(path.endswith(name) for path in classic), name
    assert classic.keys() ^ other.keys() == set()
    assert {path: (classic[path], other[path]) for path in classic if classic[path] != other[path]} == {}
    assert settings(engine, references["classic"]) == settings(engine, references["buildkit"])
    layers = [engine.images.get(references[builder]).attrs["RootFS"]["Layers"] for builder in references]
    assert layers[0][:-1] == layers[1][:-1] == engine.images.get(image).attrs["RootFS"]["Layers"][:-1]


def test_a_wheel_is_downloaded_once_for_many_builds(
    buildkit: None, engine: Any, image: str, references: dict[str, str], tmp_path: Path
) -> None:
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
                f"RUN pip install --index-url {url}/simple --target /opt/new hvdcloud_cached\n",
                reference=references["buildkit"],
            )
            found = find_builder(engine.api)
            assert found is not None
            found.build(step, progress=ignore)
    assert [path for path in asked if path.endswith(".whl")] == [f"/{tmp_path.name}/{wheel.name}"]
    assert [path for path in asked if path.endswith("/")] == ["/simple/hvdcloud-cached/"] * 2


def test_a_failing_step_is_reported_as_with_the_classic_builder(builder: str, engine: Any) -> None:
    step = small(dockerfile="FROM debian:bookworm-slim\nRUN echo one; echo two >&2; exit 3\n")
    found = find_builder(engine.api) or ClassicBuilder(engine.api)
    with pytest.raises(ImageError, match="a small image was not built: at step 2/2: RUN echo one; echo two") as raised:
        found.build(step, progress=ignore)
    assert raised.value.details.splitlines()[-2:] in (["one", "two"], ["two", "one"])
    assert inspected(engine.api, f"{NAME}:1") is None


def test_an_image_that_cannot_be_pulled_is_named(builder: str, engine: Any) -> None:
    step = small(dockerfile="FROM registry.invalid/none:1\nRUN true\n")
    found = find_builder(engine.api) or ClassicBuilder(engine.api)
    with pytest.raises(ImageError, match=r"the image that it starts from is not here .*FROM registry\.invalid/none:1"):
        found.build(step, progress=ignore)


BUILD = """
from hvdcloud import engine
from hvdcloud.image.build.buildkit import find_builder
from tests.support.small_image import small

step = small(dockerfile="FROM debian:bookworm-slim\\nRUN echo begun; exec sleep {seconds}\\n")
find_builder(engine.connect().api).build(step, progress=lambda event: print(event.text, flush=True))
"""


def test_a_build_that_is_interrupted_leaves_nothing(buildkit: None, engine: Any) -> None:
    seconds = f"300.{os.getpid()}"
    command = [sys.executable, "-c", BUILD.replace("{seconds}", seconds)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=Path(__file__).parents[2]
    )
    try:
        assert process.stdout is not None
        until(lambda: process.stdout.readline() == "begun\n", seconds=60, what="the build")
        until(lambda: running(seconds), seconds=10, what="the step's process")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=80)
    finally:
        process.kill()
        process.communicate()
    until(lambda: not running(seconds), seconds=20, what="the end of the build's process")
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
