"""An image that has no code for the nodes' GPUs is refused before anything is built or costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvdcloud.checks import Severity, Status, run_checks
from hvdcloud.config.file import load_config
from hvdcloud.config.model import Config
from hvdcloud.doctor.gpus import check_gpus
from hvdcloud.doctor.machine import gpu_checks
from hvdcloud.errors import UsageError
from hvdcloud.providers import platform

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


def test_a_gpu_that_the_image_has_no_code_for_is_refused_naming_the_row_that_has(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        check_gpus(config(tmp_path, **OLD_GPU_NEW_IMAGE))
    assert "torch 2.13.0 for CUDA 13.0 does not run on nvidia-tesla-v100" in refused.value.message
    assert refused.value.hint == "set image.version: 2.7.1, whose image does"


def test_the_gpu_that_a_machine_type_comes_with_counts_too(tmp_path: Path) -> None:
    settings = {**OLD_GPU_NEW_IMAGE, "gce.machine_type": "g2-standard-8", "gce.gpu": None}
    check_gpus(config(tmp_path, **settings))


def test_a_gpu_that_is_not_in_the_table_is_left_for_the_check_of_the_machine(tmp_path: Path) -> None:
    check_gpus(config(tmp_path, **{**OLD_GPU_NEW_IMAGE, "gce.gpu": {"type": "nvidia-tesla-x1", "count": 1}}))


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
    assert (check.name, check.severity) == ("GPU and image", Severity.BLOCKS)
    (found,) = run_checks([check])
    assert found.status is status


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"image.device": "cpu"}, None),
        ({"image.device": "cuda"}, None),
        ({"image.device": "cpu", "gce.gpu": T4}, "would be paid for and not used"),
        ({"image.device": "cuda", "gce.gpu": {"type": "nvidia-tesla-t4", "count": 0}}, "the nodes have no GPU"),
        ({"image.device": "cpu", "gce.gpu": {"type": "nvidia-tesla-t4", "count": 0}}, None),
        ({"image.device": "cpu", "provider": "local"}, None),
        ({"image.device": "cuda", "provider": "local"}, None),
    ],
)
def test_gpus_without_cuda_and_cuda_without_gpus_are_remarked_on(
    tmp_path: Path, settings: dict[str, object], said: str | None
) -> None:
    found = platform(config(tmp_path, **settings)).device_mismatch()
    assert (found is None) if said is None else (found is not None and said in found.message)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "n1-standard-8 with 1 nvidia-tesla-t4"),
        ({"gce.spot": "all"}, "n1-standard-8 with 1 nvidia-tesla-t4, Spot"),
        ({"gce.spot": "workers"}, "n1-standard-8 with 1 nvidia-tesla-t4, workers Spot"),
        ({"gce.spot": "workers", "nodes": 1}, "n1-standard-8 with 1 nvidia-tesla-t4"),
        ({"gce.spot": "workers", "gce.machine_type": "g2-standard-8", "gce.gpu": None},
         "g2-standard-8 with 1 nvidia-l4, workers Spot"),
    ],
)  # fmt: skip
def test_what_the_machines_are_is_said_by_role(tmp_path: Path, settings: dict[str, Any], said: str) -> None:
    assert platform(config(tmp_path, **{"gce.gpu": T4, **settings})).machines() == said
