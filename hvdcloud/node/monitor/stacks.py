"""Takes samples and stacks of the processes of this node's ranks, by psutil and py-spy, which the image has.

py-spy stops a process for a moment. It reads what the process has in its memory, which may be anything: its time and
what it prints are bounded.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from hvdcloud.json_values import mappings, text
from hvdcloud.node import processes
from hvdcloud.node.monitor.stillness import NodeSample, ProcessSample
from hvdcloud.runs.stacks import MOST_FRAMES, MOST_PROCESSES, MOST_THREADS, Frame, ProcessStacks, RankStacks, Thread

SECONDS = 10.0
"""How long py-spy may take for a process."""
NATIVE_SECONDS = 30.0
"""With native code, whose symbols it reads first."""
MOST_BYTES = 1 << 20
"""Of a node's stacks, as JSON; beyond, only main threads, and then none."""
_MOST_OUTPUT = 8 << 20
_FOLDERS = (Path("/opt/hvdcloud/stacks/bin"), Path(sys.executable).parent)


class Taker:
    """Takes samples and stacks on this node.

    Args:
        node: its name.
        checkpoints: the run's checkpoint directory.
    """

    def __init__(self, node: str, checkpoints: Path) -> None:
        self._node = node
        self._checkpoints = checkpoints
        self.written_at: float | None = None
        """When a checkpoint was last written, in seconds since the epoch, as of the last sample."""

    def sample(self, ranks: Mapping[int, int]) -> NodeSample:
        """What the ranks do at this moment; `ranks`: the process that each has started."""
        found = {rank: _sample_of(pid) for rank, pid in ranks.items()}
        files, size, self.written_at = _written(self._checkpoints)
        return NodeSample(time.monotonic(), found, checkpoints=(files, size))

    def stacks(self, ranks: Mapping[int, int]) -> list[RankStacks]:
        """The stacks of every thread of the ranks, bounded in size; `ranks`: the process that each has started."""
        found = [
            RankStacks(rank=rank, node=self._node, processes=[_stacks_of(each) for each in _tree(pid)])
            for rank, pid in sorted(ranks.items())
        ]
        return bounded(found)


def _sample_of(pid: int) -> dict[int, ProcessSample]:
    found = {}
    for process in _tree(pid):
        # What ends meanwhile is not in the next sample.
        with contextlib.suppress(psutil.Error):
            threads = {each.id: each.user_time + each.system_time for each in process.threads()}
            disk = process.io_counters()
            spied = spy(process.pid)
            found[process.pid] = ProcessSample(
                place=spied.frames.get(process.pid) if spied is not None else None,
                main_seconds=threads.get(process.pid, 0.0),
                seconds=sum(threads.values()),
                moved_bytes=disk.read_bytes + disk.write_bytes,
            )
    return found


def _stacks_of(process: psutil.Process) -> ProcessStacks:
    pid = process.pid
    spied = spy(pid, native=True)
    if spied is None or spied.problem:
        spied = spy(pid) or spied
    known = spied.frames if spied is not None else {}
    threads = [
        Thread(name=spied.names.get(tid, "") if spied is not None else "", main=tid == pid, frames=frames)
        for tid, frames in sorted(known.items(), key=lambda each: (each[0] != pid, each[0]))[:MOST_THREADS]
    ]
    command = ""
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())
    problem = "py-spy is not in this image" if spied is None else spied.problem
    return ProcessStacks(pid=pid, command=command, threads=threads, problem=problem)


def bounded(stacks: Sequence[RankStacks], *, most: int = MOST_BYTES) -> list[RankStacks]:
    """The same, or less of it: main threads alone, and then no more than fit. `most`: bytes of JSON."""

    def size(found: Iterable[RankStacks]) -> int:
        return sum(len(json.dumps(each.to_json())) for each in found)

    if size(stacks) <= most:
        return list(stacks)
    smaller = []
    for each in stacks:
        threads = [thread for thread in each.trains.threads if thread.main]
        smaller.append(replace(each, processes=[replace(each.trains, threads=threads)]))
    while smaller and size(smaller) > most:
        smaller.pop()
    return smaller


class Spied(NamedTuple):
    """What py-spy has seen of a process."""

    frames: Mapping[int, tuple[Frame, ...]]
    """By the kernel's ids of the threads, the deepest first."""
    names: Mapping[int, str]
    problem: str = ""
    """Why it has seen nothing: the process runs no Python, or may not be looked at."""


def spy(pid: int, *, native: bool = False) -> Spied | None:
    """The stacks of a process's Python threads; None: there is no py-spy here. `native`: with native code."""
    program = next((str(folder / "py-spy") for folder in _FOLDERS if (folder / "py-spy").is_file()), None)
    if program is None:
        return None
    command = [program, "dump", "--json", *(["--native"] if native else []), "--pid", str(pid)]
    output, complaint = _run(command, seconds=NATIVE_SECONDS if native else SECONDS)
    try:
        threads = mappings(json.loads(output))
    except (ValueError, RecursionError):
        return Spied({}, {}, complaint or "py-spy said nothing")
    frames, names = {}, {}
    for thread in threads[:MOST_THREADS]:
        tid = thread.get("os_thread_id")
        if isinstance(tid, int):
            calls = mappings(thread.get("frames"))
            if len(calls) > MOST_FRAMES:
                # The deepest, and those that begin in the user's own code.
                calls = [*calls[: MOST_FRAMES // 2], *calls[-(MOST_FRAMES // 2) :]]
            frames[tid] = tuple(map(_frame, calls))
            names[tid] = text(thread.get("thread_name"))
    return Spied(frames, names)


def _frame(value: Mapping[str, Any]) -> Frame:
    name, file, line = text(value.get("name")), text(value.get("filename")), value.get("line")
    # Of code that is in no file, py-spy knows the address alone.
    native = value.get("module") is not None or name.startswith("0x")
    file = text(value.get("module")) if native else file
    return Frame(name=name, file=file, line=line if isinstance(line, int) and not native else 0, native=native)


def _run(command: Sequence[str], *, seconds: float) -> tuple[bytes, str]:
    """What a program prints, and its last words of complaint; it gets neither more time nor more memory than that."""
    # Without the mark of the run, by which its processes are found and ended.
    environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return b"", f"py-spy cannot be started: {error.strerror}"
    assert process.stdout is not None
    assert process.stderr is not None
    said: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    reading = [process.stdout, process.stderr]
    deadline = time.monotonic() + seconds
    with process:
        while reading and time.monotonic() < deadline and sum(map(len, said.values())) < _MOST_OUTPUT:
            for stream in select.select(reading, [], [], max(0.0, deadline - time.monotonic()))[0]:
                data = os.read(stream.fileno(), 1 << 16)
                said[stream] += data
                if not data:
                    reading.remove(stream)
        if reading:
            process.kill()
            return b"", f"py-spy did not answer within {seconds:.0f} s"
    lines = said[process.stderr].decode(errors="replace").strip().splitlines()
    return bytes(said[process.stdout]), lines[0] if lines else ""


def _tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants that run, no more than `MOST_PROCESSES`."""
    try:
        first = psutil.Process(pid)
    except psutil.NoSuchProcess:
        return []
    return [first, *sorted(processes.descendants(pid), key=lambda each: each.pid)][:MOST_PROCESSES]


def _written(directory: Path) -> tuple[int, int, float | None]:
    """How many files a folder has, their bytes, and when one was last changed."""
    files, size, newest = 0, 0, None
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                found = os.lstat(os.path.join(folder, name))  # noqa: PTH118 - a Path for each of many files costs more
                files, size = files + 1, size + found.st_size
                # No program can set it.
                newest = max(newest or 0.0, found.st_ctime)
    return files, size, newest
