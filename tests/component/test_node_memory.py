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
