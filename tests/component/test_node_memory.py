"""Whose processes the kernel killed for lack of memory: those of this container, not those of its neighbours."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hvdcloud.node import machine
from tests.support.harness import until

LIMIT_BYTES = 512 << 20
CGROUPS = Path("/sys/fs/cgroup")
HOG = f"import os; os.fork() or bytearray({4 * LIMIT_BYTES}); os.wait()"


def write(root: Path, files: dict[str, str]) -> Path:
    """The kernel's files, and 9 kills on the whole machine."""
    for name, text in {"proc/vmstat": "nr_free_pages 7\noom_kill 9\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V1 = "9:name=systemd:/docker/abc\n4:cpu,memory:/docker/abc\n0::/docker/abc\n"
EVENTS = "low 0\nhigh 0\nmax 4\noom 1\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        pytest.param({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": EVENTS}, 2, id="version 2"),
        pytest.param(
            {
                "proc/self/cgroup": "0::/docker/abc\n",
                "sys/fs/cgroup/docker/abc/memory.events": EVENTS,
                "sys/fs/cgroup/memory.events": EVENTS.replace("oom_kill 2", "oom_kill 8"),
            },
            2,
            id="version 2 with the machine's paths",
        ),
        pytest.param({"proc/self/cgroup": V1, "sys/fs/cgroup/memory/memory.oom_control": CONTROL}, 3, id="version 1"),
        pytest.param(
            {
                "proc/self/cgroup": V1,
                "sys/fs/cgroup/memory/memory.oom_control": CONTROL,
                "sys/fs/cgroup/memory.events": EVENTS,
            },
            3,
            id="both",
        ),
        pytest.param(
            {"proc/self/cgroup": V1, "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\n"},
            9,
            id="a kernel before 4.13, which has no such count",
        ),
        pytest.param({"proc/self/cgroup": "0::/\n"}, 9, id="the root group"),
        pytest.param({}, 9, id="no control groups"),
    ],
)
def test_the_containers_own_count_comes_before_the_machines(tmp_path: Path, files: dict[str, str], kills: int) -> None:
    assert machine.killed_for_memory(write(tmp_path, files)) == kills


@contextlib.contextmanager
def control_group(name: str) -> Iterator[Path]:
    """A control group with little memory. Skips where none may be made."""
    memory = CGROUPS / "memory"
    folder, limit = (memory / name, "memory.limit_in_bytes") if memory.is_dir() else (CGROUPS / name, "memory.max")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            (folder / limit).write_text(str(LIMIT_BYTES))
        except OSError as error:
            pytest.skip(f"a control group's memory cannot be limited here: {error}")
        for swap in ("memory.memsw.limit_in_bytes", "memory.swap.max"):
            with contextlib.suppress(OSError):
                (folder / swap).write_text(str(LIMIT_BYTES if "memsw" in swap else 0))
        yield folder
    finally:
        # Processes that were ended may still be about to leave it.
        until(lambda: _removed(folder), seconds=10, what=f"{folder} to be empty")


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def run_in(folder: Path, program: str) -> str:
    """What a Python program in a control group prints."""
    join = f"open({str(folder / 'cgroup.procs')!r}, 'w').write('0')\n"
    return subprocess.run(
        [sys.executable, "-c", join + program], check=True, capture_output=True, text=True, timeout=60
    ).stdout


def test_a_neighbour_that_is_killed_for_its_memory_is_not_ours(tmp_path: Path) -> None:
    count = "from hvdcloud.node.machine import killed_for_memory\nprint(killed_for_memory(), flush=True)\n"
    hog = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {HOG!r}])\n"
    own, other = f"hvdcloud-{tmp_path.parent.name}-own", f"hvdcloud-{tmp_path.parent.name}-other"
    with control_group(own) as ours, control_group(other) as theirs:
        before = run_in(ours, count)
        run_in(theirs, hog)
        assert run_in(theirs, count) == "1\n"
        assert run_in(ours, count) == before == "0\n"
        assert run_in(ours, hog + count) == "1\n"
