"""Whose processes the kernel killed for lack of memory: those of this container, not those of its neighbours."""

from __future__ import annotations

from pathlib import Path

import pytest

from hvdcloud.node import machine


def write(root: Path, files: dict[str, str]) -> Path:
    """The kernel's files, and 9 kills on the whole machine."""
    for name, text in {"proc/vmstat": "nr_free_pages 7\noom_kill 9\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


EVENTS = "low 0\nhigh 0\nmax 4\noom 1\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        pytest.param({"sys/fs/cgroup/memory.events": EVENTS}, 2, id="version 2"),
        pytest.param({"sys/fs/cgroup/memory/memory.oom_control": CONTROL}, 3, id="version 1"),
        pytest.param(
            {
                "sys/fs/cgroup/memory/memory.oom_control": CONTROL,
                "sys/fs/cgroup/memory.events": EVENTS,
            },
            3,
            id="both",
        ),
        pytest.param(
            {"sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\n"},
            9,
            id="a kernel before 4.13, which has no such count",
        ),
        pytest.param({}, 9, id="no control groups"),
    ],
)
def test_the_containers_own_count_comes_before_the_machines(tmp_path: Path, files: dict[str, str], kills: int) -> None:
    assert machine.killed_for_memory(write(tmp_path, files)) == kills
