"""A build on an engine whose disk is full: a second engine of this machine, on a small disk of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.errors import ExitCode, ImageError
from hvdcloud.image.build.builder import build
from tests.support.engines import second_engine

pytestmark = pytest.mark.engine

DISK_MB = 64


@pytest.fixture
def small_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """DOCKER_HOST names an engine with little space for the duration of the test."""
    with second_engine(disk_mb=DISK_MB) as found:
        monkeypatch.setenv("DOCKER_HOST", found.docker_host)
        yield


def test_a_full_disk_is_named_with_the_command_that_shows_what_fills_it(small_engine: None, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    # As large as torch's real one, and of no content.
    with (wheels / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").open("wb") as wheel:
        wheel.truncate(3 * DISK_MB << 20)
    with pytest.raises(ImageError, match="the disk of the Docker engine is full") as raised:
        build(ImageConfig(requirements=None, find_links=str(wheels)), project_dir=tmp_path)
    assert raised.value.code == ExitCode.IMAGE
    assert "docker system df" in raised.value.hint
    assert "no space left on device" in raised.value.details
