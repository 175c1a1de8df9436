"""`image.base` without Horovod: compiled inside, with the recipe of our own images. Takes as long as those do."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build.builder import build
from hvdcloud.image.plan import custom_base
from hvdcloud.image.plan.steps import plan_image
from hvdcloud.image.plan.versions import Row, find
from tests.images import contents

Build = Callable[[Row], str]
pytestmark = pytest.mark.engine

NAME = "hvdcloud-tests/own:without-horovod"
# torch with its headers, as its wheel has it, and Debian's Python; no compiler, no Open MPI, no pip, no Horovod.
WITHOUT_HOROVOD = r"""
RUN site=$(echo /opt/venv/lib/python3.*/site-packages) && cp -r /opt/framework-dev/. "$site/" \
    && rm -rf /opt/framework-dev /opt/horovod /opt/hvdcloud /opt/tools /usr/local/bin/pip "$site/horovod.pth" \
    && apt-mark manual python3 \
    && apt-get purge -y g++ libopenmpi-dev make patch python3-dev python3-venv && apt-get autoremove -y
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
"""


@pytest.fixture(scope="module")
def node(engine: Any, built: Build, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The node's image of an image without Horovod; nothing is left of either."""
    folder: Path = tmp_path_factory.mktemp("own")
    row = find("torch", "cpu")
    built(row)
    builder = plan_image(ImageConfig(requirements=None), project_dir=folder).steps[0].reference
    dockerfile = f"FROM {builder}\n{WITHOUT_HOROVOD}".encode()
    engine.images.build(fileobj=io.BytesIO(dockerfile), tag=NAME, rm=True, forcerm=True)
    config = ImageConfig(base=NAME, requirements=None)
    steps = plan_image(config, project_dir=folder, base=custom_base.find(engine.api, NAME)).steps
    reference = build(config, project_dir=folder).reference
    yield reference
    for name in dict.fromkeys([reference, *(step.reference for step in reversed(steps)), NAME]):
        engine.images.remove(name, force=True)


def test_horovod_is_compiled_in_and_the_compilers_stay_outside(engine: Any, node: str) -> None:
    # The build itself has had two ranks reduce a tensor, with Gloo and with MPI.
    script = (
        "command -v horovodrun; horovodrun --check-build; for tool in g++ make pip; do command -v $tool; done; true"
    )
    lines = contents.inside(engine, node, "sh", "-c", script).splitlines()
    assert lines[0] == "/opt/horovod/bin/horovodrun"
    assert [line.strip() for line in lines if "MPI" in line or "Gloo" in line][:2] == ["[X] MPI", "[X] Gloo"]
    assert not [line for line in lines[1:] if line.startswith("/")]


def test_its_framework_is_untouched(engine: Any, node: str) -> None:
    code = "import horovod, torch; print(torch.__version__, torch.__file__, horovod.__file__)"
    version, torch, horovod = contents.inside(engine, node, "python", "-c", code).split()
    assert version == find("torch", "cpu").package.partition("==")[2]
    assert torch.startswith("/opt/venv/")
    assert horovod.startswith("/opt/horovod/")
