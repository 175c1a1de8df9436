"""An image that has no code for the nodes' GPUs is refused before anything is built or costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.checks import Status, run_checks
from hvdcloud.config.model import Config
from hvdcloud.doctor.machine import check_gpus, gpu_checks
from hvdcloud.errors import UsageError
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


@pytest.mark.parametrize(("version", "launcher"), [("2.13.0", "horovod"), ("2.14.1", "torchrun")])
def test_a_gpu_that_the_image_has_no_code_for_is_refused_naming_the_row_that_has(
    tmp_path: Path, version: str, launcher: str
) -> None:
    given = config(tmp_path, **{**OLD_GPU_NEW_IMAGE, "image.version": version, "run.launcher": launcher})
    with pytest.raises(UsageError) as refused:
        check_gpus(given, platform(given))
    assert f"torch {version} for CUDA 13.0 does not run on nvidia-tesla-v100" in refused.value.message
    assert "whose compute capability is 7.0" in refused.value.message
    assert refused.value.hint == "set image.version: 2.7.1, whose image does"


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        (OLD_GPU_NEW_IMAGE, Status.FAILED),
        ({"image.device": "cuda"}, Status.OK),
        ({"image.device": "cpu", "gce.gpu": T4}, Status.WARNING),
    ],
)
def test_it_is_asked_before_anything_is_built(tmp_path: Path, settings: dict[str, object], status: Status) -> None:
    given = config(tmp_path, **settings)
    (check,) = gpu_checks(given, platform(given))
    assert (check.name, check.blocks) == ("GPU and image", True)
    (found,) = run_checks([check])
    assert found.status is status
