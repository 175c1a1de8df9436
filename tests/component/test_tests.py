"""The rules that tests/conftest.py has for the Docker engine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hvdcloud import engine
from hvdcloud.errors import NodeError
from tests.support.harness import HVDCLOUD


def test_a_test_without_the_mark_is_refused_the_engine() -> None:
    with pytest.raises(NodeError, match=r"no-pytest\.mark\.engine"):
        engine.connect()


def test_so_are_the_commands_that_it_starts(tmp_path: Path) -> None:
    (tmp_path / "hvdcloud.yaml").write_text("name: t-refused\n")
    ended = subprocess.run([*HVDCLOUD, "up"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 5
    assert "no-pytest.mark.engine" in ended.stderr
