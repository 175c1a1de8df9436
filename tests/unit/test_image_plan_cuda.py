"""What is built for a GPU image, and with what, without an engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.plan.context import dockerfiles
from hvdcloud.image.plan.custom_base import Needs
from hvdcloud.image.plan.steps import ImagePlan, plan_image
from hvdcloud.image.plan.versions import ROWS, Row


def plan(folder: Path, *, horovod: bool = True, **config: object) -> ImagePlan:
    image_config = ImageConfig.model_validate({"requirements": None, **config})
    return plan_image(image_config, project_dir=folder, needs=Needs(launcher="horovod" if horovod else "each"))


@pytest.mark.parametrize("row", [*ROWS, *(row.without_horovod() for row in ROWS)], ids=lambda row: row.label)
def test_every_argument_is_one_that_its_dockerfile_declares(row: Row, tmp_path: Path) -> None:
    config = {"framework": row.framework, "device": row.device, "version": row.version}
    for step in plan(tmp_path, horovod=bool(row.horovod), **config).steps:
        text = (dockerfiles().parent / step.dockerfile).read_text()
        declared = set(re.findall(r"^ARG (\w+)", text, re.MULTILINE))
        assert step.arguments.keys() <= declared


def test_a_requirement_cannot_bring_another_nccl(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("idna\n")
    project = plan(tmp_path, device="cuda", requirements="requirements.txt").last
    (constraints,) = [entry for entry in project.context.hashed if entry.path == "constraints.txt"]
    lines = (constraints.content or b"").decode().splitlines()
    assert {"torch==2.7.1", "horovod==0.28.1", "nvidia-nccl-cu12==2.26.2"} <= set(lines)
