"""The CUDA images of the version matrix: built once, and found by their content the next time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build.builder import Options, build
from hvdcloud.image.engine_reports import BuildEvent
from hvdcloud.image.plan.versions import Row
from tests.images.donors import compiled_with, donor_for

Build = Callable[[Row], str]


@pytest.fixture(scope="session")
def built(engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a row's image, with the best donor that can be had; takes minutes the first time."""
    references: dict[str, str] = {}

    def call(row: Row) -> str:
        if row.label not in references:
            wanted = {"framework": row.framework, "device": row.device, "version": row.version}
            config = ImageConfig.model_validate({**wanted, "requirements": None})
            project = tmp_path_factory.mktemp(row.label)
            with ExitStack() as stack:
                if row.donor:
                    donor = donor_for(engine, wanted=row.donor, cuda=row.cuda).reference
                    stack.enter_context(compiled_with(row, donor))
                references[row.label] = build(config, project_dir=project, options=Options(progress=show)).reference
        return references[row.label]

    return call


def show(event: BuildEvent) -> None:
    """A line of progress, of a build that takes minutes."""
    if event.kind in ("image", "step"):
        sys.stderr.write(f"{event.text}\n")


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    """A folder as Container-Optimized OS mounts it, with a libcuda.so.1 that only says its version: 12345."""
    source = tmp_path / "driver.c"
    source.write_text("int cuDriverGetVersion(int *version) { *version = 12345; return 0; }\n")
    folder = tmp_path / "lib64"
    folder.mkdir()
    library = folder / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    return folder
