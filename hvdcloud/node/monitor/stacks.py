"""The stacks of this node's ranks, and what their processes use, by py-spy and psutil, which the image has.

py-spy stops a process for a moment, and reads what the process has in its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from hvdcloud.json_values import mappings, text
from hvdcloud.node import paths, processes
from hvdcloud.node.records.spec import Spec
from hvdcloud.runs.stacks import MOST_FRAMES, MOST_PROCESSES, MOST_THREADS, Frame, ProcessStacks, RankStacks, Thread

SECONDS = 10.0
"""How long py-spy may take for a process."""
NATIVE_SECONDS = 30.0
"""With native code, whose symbols it reads first."""
MOST_BYTES = 1 << 20
"""Of a node's stacks, as JSON; beyond, only main threads."""
_FOLDERS = (Path("/opt/hvdcloud/stacks/bin"), Path(sys.executable).parent)


class Looker:
    """Looks at the ranks of a run on this node, one look at a time, each in a thread of its own."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec
        self._working = threading.Lock()

    def look(self, ranks: Mapping[int, int], *, native: bool, tell: Callable[[dict[str, Any]], None]) -> None:
        """Take the stacks of all threads of the ranks.

        Args:
            ranks: the process that each has started.
            native: with native code.
            tell: gets {ranks, used, written, at}: the stacks, what each rank has used (run/stuck.py), and for how many
                seconds no checkpoint has changed.
        """
        threading.Thread(target=lambda: tell(self._look(ranks, native=native)), name="stacks", daemon=True).start()

    def _look(self, ranks: Mapping[int, int], *, native: bool) -> dict[str, Any]:
        with self._working:
            at, trees = time.monotonic(), {rank: _tree(pid) for rank, pid in sorted(ranks.items())}
            used = [(rank, _used(tree)) for rank, tree in trees.items()]
            stacks = [
                RankStacks(
                    rank=rank, node=self._spec.name, processes=[_stacks_of(each, native=native) for each in tree]
                )
                for rank, tree in trees.items()
            ]
            written = _written_at(paths.checkpoints_dir(self._spec.run))
        return {
            "ranks": [each.to_json() for each in bounded(stacks)],
            "used": used,
            "written": None if written is None else max(0.0, time.time() - written),
            "at": at,
        }


def _tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants that run, no more than `MOST_PROCESSES`."""
    try:
        first = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [first, *sorted(processes.descendants(pid), key=lambda each: each.pid)][:MOST_PROCESSES]


def _used(tree: Iterable[psutil.Process]) -> tuple[float, float, int]:
    """Seconds of a core that the processes' main threads have used, and all their threads, with ended children; bytes
    from and to disks."""
    main, every, moved = 0.0, 0.0, 0
    for process in tree:
        # One that ends meanwhile has nothing more to say.
        with contextlib.suppress(psutil.Error):
            times, disk = process.cpu_times(), process.io_counters()
            children = times.children_user + times.children_system
            own = (each.user_time + each.system_time for each in process.threads() if each.id == process.pid)
            main += children + sum(own)
            every += children + times.user + times.system
            moved += disk.read_bytes + disk.write_bytes
    return main, every, moved


def _stacks_of(process: psutil.Process, *, native: bool) -> ProcessStacks:
    pid = process.pid
    found, problem = _spy(pid, native=native)
    if problem and native:
        found, problem = _spy(pid, native=False)
    threads = [
        Thread(name=text(each.get("thread_name")), main=each.get("os_thread_id") == pid, frames=_frames(each))
        for each in sorted(found, key=lambda each: each.get("os_thread_id") != pid)[:MOST_THREADS]
    ]
    command = ""
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
    return ProcessStacks(pid=pid, command=command, threads=threads, problem=problem)


def _spy(pid: int, *, native: bool) -> tuple[list[dict[str, Any]], str]:
    """A process's Python threads as py-spy describes them, and why there are none."""
    program = next((str(folder / "py-spy") for folder in _FOLDERS if (folder / "py-spy").is_file()), None)
    if program is None:
        return [], "py-spy is not in this image"
    seconds = NATIVE_SECONDS if native else SECONDS
    # Without the mark of the run, by which its processes are found and ended.
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    command = [program, "dump", "--json", *(["--native"] if native else []), "--pid", str(pid)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=seconds, check=False
        )
        return mappings(json.loads(done.stdout)), ""
    except OSError as error:
        return [], f"py-spy cannot be started: {error.strerror}"
    except subprocess.TimeoutExpired:
        return [], f"py-spy did not answer within {seconds:.0f} s"
    except (ValueError, RecursionError):
        return [], next(iter(done.stderr.decode(errors="replace").split("\n")), "") or "py-spy said nothing"


def _frames(thread: Mapping[str, Any]) -> list[Frame]:
    """Its calls, the deepest first."""
    calls = mappings(thread.get("frames"))
    if len(calls) > MOST_FRAMES:
        # The deepest, and those that begin in the user's own code.
        calls = [*calls[: MOST_FRAMES // 2], *calls[-(MOST_FRAMES // 2) :]]
    return [_frame(each) for each in calls]


def _frame(value: Mapping[str, Any]) -> Frame:
    name, file, line = text(value.get("name")), text(value.get("filename")), value.get("line")
    # Of code that is in no file, py-spy knows the address alone.
    native = value.get("module") is not None or name.startswith("0x")
    file = text(value.get("module")) if native else file
    return Frame(name=name, file=file, line=line if isinstance(line, int) and not native else 0, native=native)


def bounded(stacks: Sequence[RankStacks], *, most: int = MOST_BYTES) -> list[RankStacks]:
    """The same; if that is more than `most` bytes of JSON, the main threads alone."""
    if len(json.dumps([each.to_json() for each in stacks])) <= most:
        return list(stacks)
    main = [[thread for thread in each.trains.threads if thread.main] for each in stacks]
    return [
        replace(each, processes=[replace(each.trains, threads=threads)])
        for each, threads in zip(stacks, main, strict=True)
    ]


def _written_at(directory: Path) -> float | None:
    """When anything below a folder was last changed, which no program can set; None: there is nothing."""
    found = []
    for folder, _, names in os.walk(directory):
        for path in (folder, *(os.path.join(folder, name) for name in names)):  # noqa: PTH118 - many files
            with contextlib.suppress(OSError):
                found.append(os.lstat(path).st_ctime)
    return max(found, default=None)
