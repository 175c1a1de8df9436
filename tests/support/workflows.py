"""The workflows of `.github/workflows/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[2] / ".github" / "workflows"


def read_workflow(name: str) -> dict[Any, Any]:
    """One of them, by its file's name: `train.yml`. (YAML reads its key `on` as True.)"""
    found: dict[Any, Any] = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    return found
