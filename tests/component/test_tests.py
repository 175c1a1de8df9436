"""The rules that tests/conftest.py has for the Docker engine."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping
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


def scheduler(folder: Path, files: Mapping[str, tuple[str, int]], **slots: int) -> tuple[Any, list[Worker]]:
    """One of three workers that have their first tests.

    Args:
        files: text and number of tests, by path.
    """
    for file, (text, _) in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    tests = [f"{file}::test_{number}" for file, (_, count) in files.items() for number in range(count)]
    options = SimpleNamespace(tx=["3*popen"], loadscopereorder=False)
    config: Any = SimpleNamespace(rootpath=folder, option=options, getvalue=lambda name: getattr(options, name))
    made: Any = EngineSlots(config, None, **slots)
    workers: list[Any] = [Worker() for _ in range(3)]
    for worker in workers:
        made.add_node(worker)
        made.add_node_collection(worker, tests)
    made.schedule()
    return made, workers


def test_a_third_process_helps_with_the_engine_once_there_is_little_else(tmp_path: Path) -> None:
    mark = "pytestmark = pytest.mark.engine\n"
    files = {f"e2e/test_{number:02}.py": (mark, 9) for number in range(40)}
    schedule, workers = scheduler(
        tmp_path, {**files, "component/test_much.py": ("", KEPT + 100)}, slots=2, late_slots=3
    )
    tests = schedule.collection
    assert tests is not None

    ran, at_engine = [], []
    while running := [worker for worker in workers if worker.queue]:
        at_engine.append(sum(tests[worker.queue[0]].startswith("e2e") for worker in running))
        for worker in running:
            done = worker.queue.pop(0)
            ran.append(tests[done])
            schedule.mark_test_complete(worker, done)
    assert sorted(ran) == sorted(tests)
    # As long as there is much else to do, two of three; what is kept for the end is what no file is held up by.
    assert set(at_engine[:90]) == {2}
    assert 3 in at_engine
    assert [test for test in ran[-KEPT // 2 :] if test.startswith("e2e")] == []


def test_while_one_process_builds_the_images_others_do_what_needs_none(tmp_path: Path) -> None:
    mark = "pytestmark = pytest.mark.engine\n"
    needs = mark + "def test_it(image: str) -> None: ..."
    alone = mark + "@pytest.mark.engine(alone=True)"
    files = {"a.py": (needs, 9), "b.py": (needs, 9), "c.py": (alone, 9), "d.py": (mark, 9), "e.py": (mark, 9)}
    # A file that speaks of an image, but does without the engine.
    files |= {"f.py": (needs.removeprefix(mark), 9), "g.py": (mark, 9)}
    schedule, (builder, *others) = scheduler(tmp_path, files, slots=3, late_slots=3)
    tests = schedule.collection
    assert tests is not None

    def files_of(worker: Worker) -> list[str]:
        return list(dict.fromkeys(tests[index].partition("::")[0] for index in worker.queue))

    def complete(worker: Worker, count: int) -> None:
        for _ in range(count):
            schedule.mark_test_complete(worker, worker.queue.pop(0))

    assert files_of(builder) == ["a.py"]
    assert [files_of(other) for other in others] == [["d.py"], ["e.py"]]
    complete(others[0], 8)
    assert files_of(others[0]) == ["d.py", "f.py"]
    complete(others[0], 2)
    complete(others[1], 8)
    assert files_of(others[1]) == ["e.py", "g.py"], "f.py has made no image"
    # The first test has its image.
    complete(builder, 1)
    complete(others[0], 7)
    assert files_of(others[0]) == ["f.py", "b.py"]


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
