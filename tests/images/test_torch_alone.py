"""The newest torch for GPUs, which only images without Horovod have, on a machine that need not have a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build.builder import build
from hvdcloud.image.plan import versions
from hvdcloud.image.plan.custom_base import Needs
from tests.images.contents import files_named, inside

pytestmark = [pytest.mark.engine, pytest.mark.timeout(3600)]


def test_torchrun_trains_with_one_nccl_and_neither_compiler_nor_toolkit_is_there(engine: Any, tmp_path: Path) -> None:
    row = versions.find("torch", "cuda", "2.14.1", horovod=False)
    config = ImageConfig(device="cuda", version=row.version, requirements=None)
    image = build(config, project_dir=tmp_path, needs=Needs(launcher="torchrun")).reference
    said = inside(
        engine, image, "python", "-B", "/opt/hvdcloud/check_ranks.py", "torchrun",
        "--cuda", row.cuda, "--nccl", row.nccl, "--capabilities", " ".join(row.capabilities),
    )  # fmt: skip
    assert f"torch: CUDA {row.cuda} for {', '.join(row.capabilities)}; one NCCL {row.nccl}: " in said
    assert "torchrun works: two ranks trained a model of torch with Gloo" in said
    assert files_named(engine, image, "nvcc", "cicc", "g++*", "cc1plus", "libcudadevrt.a", "mpirun") == []
