"""Takes samples and stacks of the processes of this node's ranks: from /proc, and by py-spy, which the image has.

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

from hvdcloud.json_values import mappings, text
from hvdcloud.node import processes
from hvdcloud.node.monitor.owners import owner_of
from hvdcloud.node.monitor.sample import Sensors
from hvdcloud.node.monitor.stillness import BUSY, GpuSample, NodeSample, ProcessSample, ThreadSample
from hvdcloud.runs.stacks import MOST_FRAMES, MOST_PROCESSES, MOST_THREADS, Frame, ProcessStacks, RankStacks, Thread

SECONDS = 10.0
"""How long py-spy may take for a process."""
NATIVE_SECONDS = 30.0
"""With native code, whose symbols it reads first."""
MOST_BYTES = 1 << 20
"""Of a node's stacks, as JSON; beyond, only main threads, and then none."""
_MOST_OUTPUT = 8 << 20
_FOLDERS = (Path("/opt/hvdcloud/stacks/bin"), Path(sys.executable).parent)
_TICK = 1.0 / os.sysconf("SC_CLK_TCK")


class Taker:
    """Takes samples and stacks on this node.

    Args:
        node: its name.
        checkpoints: the run's checkpoint directory.
    """

    def __init__(self, node: str, checkpoints: Path) -> None:
        self._node = node
        self._checkpoints = checkpoints
        self._sensors = Sensors()
        self._owners: dict[tuple[int, int], str] = {}
        """Of threads, by the ids of process and thread."""
        self.written_at: float | None = None
        """When a checkpoint was last written, in seconds since the epoch, as of the last sample."""

    def sample(self, ranks: Mapping[int, int], *, before: NodeSample | None = None) -> NodeSample:
        """What the ranks do at this moment.

        Args:
            ranks: the process that each has started.
            before: an earlier sample: of threads that have computed since, it is found out for whom.
        """
        machine = self._sensors.read()
        now = time.monotonic()
        found = {}
        for rank, pid in ranks.items():
            earlier = before.ranks.get(rank, {}) if before is not None else {}
            seconds = now - before.at if before is not None else 0.0
            tree = _tree(pid)[:MOST_PROCESSES]
            found[rank] = {each: self._process(each, earlier.get(each), seconds=seconds) for each in tree}
        gpus = tuple(map(gpu_sample, machine.get("gpus", ())))
        network = float(machine.get("received", 0)) + float(machine.get("sent", 0)) if self._sensors.sees_mesh else 0.0
        files, size, self.written_at = _written(self._checkpoints)
        return NodeSample(now, found, network=network, gpus=gpus, checkpoints=(files, size))

    def _process(self, pid: int, earlier: ProcessSample | None, *, seconds: float) -> ProcessSample:
        threads = _threads(pid)
        spied = spy(pid)
        python = spied.frames if spied is not None else {}
        main = python.get(pid)
        inside: Mapping[int, tuple[Frame, ...]] | None = None
        if earlier is not None and seconds > 0:
            for tid, thread in threads.items():
                then = earlier.threads.get(tid)
                if then is None or (thread.cpu - then.cpu) / seconds < BUSY:
                    continue
                if tid not in python:
                    threads[tid] = thread._replace(owner=self._owner(pid, tid))
                elif main == earlier.main:
                    if inside is None:
                        native = spy(pid, native=True)
                        inside = native.frames if native is not None else {}
                    threads[tid] = thread._replace(inside=_called(inside.get(tid, ())))
        calls = None if main is None else tuple(frame for frame in main if not frame.native)
        return ProcessSample(threads, _moved_bytes(pid), calls)

    def _owner(self, pid: int, tid: int) -> str:
        if not self._owners.get((pid, tid)):
            self._owners[pid, tid] = owner_of(pid, tid)
        return self._owners[pid, tid]

    def stacks(self, ranks: Mapping[int, int]) -> list[RankStacks]:
        """The stacks of every thread of the ranks, bounded in size; `ranks`: the process that each has started."""
        found = [
            RankStacks(
                rank=rank,
                node=self._node,
                processes=[self._stacks_of(each) for each in _tree(pid)[:MOST_PROCESSES]],
            )
            for rank, pid in sorted(ranks.items())
        ]
        return bounded(found)

    def _stacks_of(self, pid: int) -> ProcessStacks:
        spied = spy(pid, native=True)
        if spied is None or spied.problem:
            spied = spy(pid) or spied
        known = spied.frames if spied is not None else {}
        threads = []
        for tid in sorted(_threads(pid), key=lambda tid: (tid != pid, tid))[:MOST_THREADS]:
            name = (spied.names.get(tid) if spied is not None else "") or _read(f"/proc/{pid}/task/{tid}/comm").strip()
            frames = known.get(tid, ())
            owner = "" if frames else self._owner(pid, tid)
            threads.append(Thread(name=name, main=tid == pid, frames=frames, owner=owner))
        command = _read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
        problem = "py-spy is not in this image" if spied is None else spied.problem
        return ProcessStacks(pid=pid, command=command, threads=threads, problem=problem)


def gpu_sample(said: Mapping[str, float]) -> GpuSample:
    """What `parse_gpus` has read of a GPU, without what it does not say."""
    limit = said.get("power_limit", 0.0)
    return GpuSample(
        load=said.get("utilization", 0.0),
        memory=said.get("memory", 0.0),
        memory_load=said.get("memory_load", 0.0),
        power=said.get("power", 0.0) / limit if limit > 0 else 0.0,
    )


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


def _called(frames: Sequence[Frame]) -> tuple[str, ...]:
    """The libraries that the deepest call in Python has called into."""
    found = []
    for frame in frames:
        if not frame.native:
            break
        found.append(frame.file)
    return tuple(dict.fromkeys(found))


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


def _tree(pid: int) -> list[int]:
    """A process and its descendants that run."""
    return [pid, *sorted(each.pid for each in processes.descendants(pid))] if Path(f"/proc/{pid}").exists() else []


def _threads(pid: int) -> dict[int, ThreadSample]:
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/task"):
            if (thread := _thread(f"/proc/{pid}/task/{name}")) is not None:
                found[int(name)] = thread
    return found


def _thread(folder: str) -> ThreadSample | None:
    fields = _read(f"{folder}/stat").rpartition(")")[2].split()
    status = _read(f"{folder}/status")
    if len(fields) < 13 or fields[0] in "ZX":
        return None
    ran = _read(f"{folder}/schedstat").split()
    _, _, wakes = status.partition("\nvoluntary_ctxt_switches:")
    waits = _read(f"{folder}/wchan")
    return ThreadSample(
        # Nanoseconds; where the kernel does not count them, ticks.
        cpu=int(ran[0]) / 1e9 if ran else (float(fields[11]) + float(fields[12])) * _TICK,
        wakes=int(wakes.split()[0]) if wakes.split() else 0,
        faults=int(fields[7]),
        waits="" if waits == "0" else waits,
    )


def _moved_bytes(pid: int) -> int:
    total = 0
    for line in _read(f"/proc/{pid}/io").splitlines():
        name, _, value = line.partition(":")
        if name in ("read_bytes", "write_bytes"):
            total += int(value)
    return total


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


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
