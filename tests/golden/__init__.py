"""Texts that are compared whole. UPDATE_GOLDEN=1 .venv/bin/pytest tests/unit tests/component rewrites them."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path(__file__).parent


def assert_golden(name: str, text: str) -> None:
    file = _FOLDER / name
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), f"{file} differs; UPDATE_GOLDEN=1 writes it again"
