"""The rules that tests/conftest.py has for the Docker engine."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hvdcloud import engine
from hvdcloud.errors import NodeError
from tests.support.engine_slots import needs_engine, turn
from tests.support.harness import HVDCLOUD
from tests.support.schedule import KEPT, EngineSlots

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


class Worker:
    """What the scheduler sees of a process of pytest-xdist."""

    shutting_down = False
    gateway = SimpleNamespace(id="")

    def __init__(self) -> None:
        self.queue: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_third_process_helps_with_the_engine_once_there_is_little_else(tmp_path: Path) -> None:
    files = {f"e2e/test_{number:02}.py": 9 for number in range(40)} | {"component/test_much.py": KEPT + 100}
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("pytestmark = pytest.mark.engine\n" if file.startswith("e2e") else "")
    tests = [f"{file}::test_{number}" for file, count in files.items() for number in range(count)]
    options = SimpleNamespace(tx=["3*popen"], loadscopereorder=False)
    config: Any = SimpleNamespace(rootpath=tmp_path, option=options, getvalue=lambda name: getattr(options, name))
    scheduler = EngineSlots(config, None, slots=2, late_slots=3)
    workers: list[Any] = [Worker() for _ in range(3)]
    for worker in workers:
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, tests)
    scheduler.schedule()

    ran, at_engine = [], []
    while running := [worker for worker in workers if worker.queue]:
        at_engine.append(sum(tests[worker.queue[0]].startswith("e2e") for worker in running))
        for worker in running:
            done = worker.queue.pop(0)
            ran.append(tests[done])
            scheduler.mark_test_complete(worker, done)
    assert sorted(ran) == sorted(tests)
    # As long as there is much else to do, two of three; what is kept for the end is what no file is held up by.
    assert set(at_engine[:90]) == {2}
    assert 3 in at_engine
    assert [test for test in ran[-KEPT // 2 :] if test.startswith("e2e")] == []


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
