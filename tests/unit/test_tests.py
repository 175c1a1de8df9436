"""What holds for the tests themselves."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def test_no_test_imports_a_test() -> None:
    """Nor does a program that a test writes: what several of them use is in tests/support."""
    imports = re.compile(r"\b(?:from|import) tests[\w.]*(?:\.| import (?:.*\b)?)test_\w+")
    found = [f"{path}: {line}" for path in TESTS.rglob("*.py") for line in imports.findall(path.read_text())]
    assert not found


@pytest.mark.parametrize("act", [lambda: subprocess.run(["true"], check=True), lambda: socket.create_server(("", 0))])
def test_a_unit_test_starts_no_process_and_opens_no_socket(
    act: Callable[[], object], forbidden_events: list[str]
) -> None:
    with pytest.raises(RuntimeError, match="in a unit test: it belongs to tests/component"):
        act()
    assert len(forbidden_events) == 1
    forbidden_events.clear()
