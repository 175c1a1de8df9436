"""`python -m tests.prepare`: builds the images that tests of every run use, so that none of them waits for one."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from hvdcloud.config.model import ImageConfig, Launcher
from hvdcloud.image.build.builder import build
from hvdcloud.image.plan.custom_base import Needs


def built(framework: Literal["torch", "tensorflow"], launcher: Launcher = "horovod") -> str:
    """Reference of the framework's CPU image with scikit-learn, which is found by its content the next time."""
    with tempfile.TemporaryDirectory(prefix="hvdcloud-") as folder:
        Path(folder, "requirements.txt").write_text("scikit-learn\n")
        config = ImageConfig(framework=framework)
        return build(config, project_dir=Path(folder), needs=Needs(launcher=launcher)).reference


if __name__ == "__main__":
    built("torch", "torchrun")
    built("torch")
