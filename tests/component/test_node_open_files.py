"""Real processes that hold files open in every way there is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hvdcloud.node.uploads.open_files import FileId, being_written

Holder = Callable[[str], None]

WRITING = {
    "open to write": "f = open(path, 'r+b')",
    "open to append": "f = open(path, 'ab')",
    "open write-only": "import os; f = os.open(path, os.O_WRONLY)",
    "mapped shared, descriptor closed": (
        "import mmap; f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_WRITE); f.close()"
    ),
    "inherited by a child that outlives": (
        "import os, time; f = open(path, 'ab'); pid = os.fork(); pid or time.sleep(60); f.close()"
    ),
}
READING = {
    "open to read": "f = open(path, 'rb')",
    "mapped private": (
        "import mmap; f = open(path, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY); m[0] = 1"
    ),
    "mapped read-only": "import mmap; f = open(path, 'rb'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)",
    "closed again": "open(path, 'ab').close()",
}


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    """Starts a process that does something with the file named `held` and stays."""
    started: list[subprocess.Popen[str]] = []

    def start(what: str) -> None:
        code = f"path = {str(tmp_path / 'held')!r}\n{what}\nprint('ready', flush=True)\ninput()"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    yield start
    for process in started:
        os.killpg(process.pid, 9)
        process.communicate()


@pytest.fixture
def files(tmp_path: Path) -> list[tuple[FileId, str]]:
    found = []
    for path in (tmp_path.resolve() / "held", tmp_path.resolve() / "free"):
        path.write_bytes(b"data")
        found.append(((path.stat().st_dev, path.stat().st_ino), str(path)))
    return found


@pytest.mark.parametrize("how", WRITING)
def test_a_file_that_a_process_writes_is_seen(holder: Holder, files: list[tuple[FileId, str]], how: str) -> None:
    holder(WRITING[how])
    assert being_written(files) == {files[0][0]}


@pytest.mark.parametrize("how", READING)
def test_a_file_that_is_only_read_is_free(holder: Holder, files: list[tuple[FileId, str]], how: str) -> None:
    holder(READING[how])
    assert being_written(files) == set()


def test_a_hard_link_under_another_name_is_the_same_file(
    holder: Holder, files: list[tuple[FileId, str]], tmp_path: Path
) -> None:
    holder("import os; os.link(path, path + '-2'); f = open(path + '-2', 'ab')")
    assert being_written(files) == {files[0][0]}


def test_a_writer_inside_this_process_counts_too(files: list[tuple[FileId, str]]) -> None:
    with Path(files[1][1]).open("ab"):
        assert being_written(files) == {files[1][0]}
    assert being_written([]) == set()
