"""An image that has no code for the nodes' GPUs is refused before anything is built or costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.checks import Status, run_checks
from hvdcloud.config.model import Config
from hvdcloud.doctor.machine import gpu_checks
from hvdcloud.providers import platform
from tests.support.configs import load_config

OLD_GPU_NEW_IMAGE = {
    "gce.machine_type": "n1-standard-8",
    "gce.gpu": {"type": "nvidia-tesla-v100", "count": 1},
    "image.device": "cuda",
    "image.version": "2.13.0",
}
T4 = {"type": "nvidia-tesla-t4", "count": 1}


def config(folder: Path, **settings: object) -> Config:
    (folder / "hvdcloud.yaml").write_text("name: t\nprovider: gce\ngce: {project: my-project}\n")
    return load_config(folder / "hvdcloud.yaml", flags=settings, environ={})


FITS = "set image.version: 2.7.1, whose image does"


@pytest.mark.parametrize(
    ("settings", "status", "hint"),
    [
        (OLD_GPU_NEW_IMAGE, Status.FAILED, FITS),
        ({**OLD_GPU_NEW_IMAGE, "image.version": "2.14.1", "run.launcher": "torchrun"}, Status.FAILED, FITS),
        ({"image.device": "cuda"}, Status.OK, ""),
        ({"image.device": "cpu", "gce.gpu": T4}, Status.WARNING, "device"),
    ],
)
def test_it_is_asked_before_anything_is_built_and_names_the_image_that_has(
    tmp_path: Path, settings: dict[str, object], status: Status, hint: str
) -> None:
    given = config(tmp_path, **settings)
    (check,) = gpu_checks(given, platform(given))
    assert (check.name, check.blocks) == ("GPU and image", True)
    (found,) = run_checks([check])
    assert found.status is status
    assert hint in found.hint
