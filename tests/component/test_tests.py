"""The rules that tests/conftest.py has for the Docker engine."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from hvdcloud import engine
from hvdcloud.errors import NodeError
from tests.support.engine_slots import needs_engine, turn
from tests.support.harness import HVDCLOUD

E2E = Path(__file__).parents[1] / "e2e"


def test_a_test_without_the_mark_is_refused_the_engine() -> None:
    with pytest.raises(NodeError, match=r"no-pytest\.mark\.engine"):
        engine.connect()


def test_so_are_the_commands_that_it_starts(tmp_path: Path) -> None:
    (tmp_path / "hvdcloud.yaml").write_text("name: t-refused\n")
    ended = subprocess.run([*HVDCLOUD, "up"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 5
    assert "no-pytest.mark.engine" in ended.stderr


def test_the_scheduler_finds_the_mark_in_a_file() -> None:
    assert needs_engine(E2E / "test_launch.py")
    assert not needs_engine(E2E / "test_setup.py")
    assert not needs_engine(Path(__file__))


def test_many_use_the_engine_at_a_time_or_one_alone(tmp_path: Path) -> None:
    many = threading.Barrier(2)

    def beside() -> None:
        with turn(tmp_path, alone=False):
            many.wait(10)

    def by_itself() -> None:
        with turn(tmp_path, alone=True):
            entered.set()

    entered = threading.Event()
    with turn(tmp_path, alone=False):
        threading.Thread(target=beside).start()
        many.wait(10)
        alone = threading.Thread(target=by_itself)
        alone.start()
        assert not entered.wait(0.2)
    assert entered.wait(10)
    alone.join(10)
