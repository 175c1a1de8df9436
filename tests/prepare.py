"""`python -m tests.prepare`: builds the images that tests use, so that no test waits while Horovod is compiled."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal

from hvdcloud.config.model import ImageConfig
from hvdcloud.image.build.builder import build


def built(framework: Literal["torch", "tensorflow"]) -> str:
    """Reference of the framework's CPU image with scikit-learn, which is found by its content the next time."""
    with tempfile.TemporaryDirectory(prefix="hvdcloud-") as folder:
        Path(folder, "requirements.txt").write_text("scikit-learn\n")
        return build(ImageConfig(framework=framework), project_dir=Path(folder)).reference


if __name__ == "__main__":
    built("torch")
    built("tensorflow")
