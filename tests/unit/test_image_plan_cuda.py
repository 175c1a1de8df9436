"""What is built for a GPU image, and with what, without an engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.image.plan.versions import ROWS, Row

CUDA_ROWS = [row for row in ROWS if row.cuda]


def plan(folder: Path, **config: object) -> ImagePlan:
    return plan_image(ImageConfig.model_validate({"requirements": None, **config}), project_dir=folder)


def test_the_default_donor_is_nvidias_own_image_of_the_rows_cuda(tmp_path: Path) -> None:
    builder, _ = plan(tmp_path, device="cuda").steps
    assert re.fullmatch(r"nvidia/cuda:12\.6\.3-devel-ubuntu22\.04@sha256:[0-9a-f]{64}", builder.arguments["CUDA_DONOR"])
    assert builder.arguments["CAPABILITIES"] == "5.0 6.0 7.0 7.5 8.0 8.6 9.0"
    assert "TOOLKIT_LOCK" not in builder.arguments


def test_cuda_13_needs_no_donor_because_pypi_has_its_compiler(tmp_path: Path) -> None:
    builder, _ = plan(tmp_path, device="cuda", version="2.13.0").steps
    assert builder.arguments["TOOLKIT_LOCK"] == "toolkit-13.0.txt"
    assert "CUDA_DONOR" not in builder.arguments
    assert "dockerfiles/locks/toolkit-13.0.txt" in [entry.path for entry in builder.context.hashed]


def test_an_image_for_cpus_knows_nothing_of_cuda(tmp_path: Path) -> None:
    builder, base = plan(tmp_path).steps
    assert not {"CUDA_DONOR", "CAPABILITIES", "TOOLKIT_LOCK"} & builder.arguments.keys()
    assert not {"CUDA", "NCCL", "CAPABILITIES", "NVIDIA_VISIBLE_DEVICES"} & base.arguments.keys()


@pytest.mark.parametrize("row", CUDA_ROWS, ids=lambda row: row.label)
def test_the_build_is_told_to_prove_what_the_row_says(row: Row, tmp_path: Path) -> None:
    _, base = plan(tmp_path, framework=row.framework, device=row.device, version=row.version).steps
    assert base.arguments["CUDA"] == row.cuda
    assert base.arguments["NCCL"] == row.nccl
    assert base.arguments["CAPABILITIES"] == " ".join(row.capabilities)
    assert base.arguments["NVIDIA_VISIBLE_DEVICES"] == "all"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.label)
def test_every_argument_is_one_that_its_dockerfile_declares(row: Row, tmp_path: Path) -> None:
    for step in plan(tmp_path, framework=row.framework, device=row.device, version=row.version).steps:
        text = (dockerfiles().parent / step.dockerfile).read_text()
        declared = set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
        assert step.arguments.keys() <= declared


def test_a_requirement_cannot_bring_another_nccl(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    project = plan(tmp_path, device="cuda", requirements="requirements.txt").last
    (constraints,) = [entry for entry in project.context.hashed if entry.path == "constraints.txt"]
    lines = (constraints.content or b"").decode().splitlines()
    assert {"torch==2.7.1", "horovod==0.28.1", "nvidia-nccl-cu12==2.26.2"} <= set(lines)
