"""What holds for the tests themselves."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_no_test_imports_a_test() -> None:
    """Nor does a program that a test writes: what several of them use is in tests/support."""
    imports = re.compile(r"\b(?:from|import) tests[\w.]*(?:\.| import (?:.*\b)?)test_\w+")
    found = [f"{path}: {line}" for path in TESTS.rglob("*.py") for line in imports.findall(path.read_text())]
    assert not found
