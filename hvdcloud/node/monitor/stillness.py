"""Whether the ranks of a node do anything, by two looks at their processes. Pure.

Something moves where a rank's processes come or go, read or write a disk, or a main thread is at another place in its
Python. Where none of that is so, a rank is idle or busy: what computes at one place may be a wait (threads of Horovod,
MPI and NCCL may take a whole core), or work. The supervisor decides which (run/stuck.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hvdcloud.runs.stacks import Frame

MAIN_BUSY = 0.01
"""Of a core; below, a main thread waits, and looks around now and then."""
TREE_BUSY = 0.25
"""Of a core, for all threads of a rank's processes. A thread of Horovod that asks the other ranks a thousand times a
second (HOROVOD_CYCLE_TIME) takes up to half of that."""
MOVED_BYTES = 1 << 20


class ProcessSample(NamedTuple):
    """A process of a rank at one moment."""

    place: tuple[Frame, ...] | None = None
    """The calls of its main thread in Python; None: not known, or it runs none."""
    main_seconds: float = 0.0
    """Of a core so far, by its main thread."""
    seconds: float = 0.0
    """Of a core so far, by all its threads."""
    moved_bytes: int = 0
    """From and to disks so far."""


class NodeSample(NamedTuple):
    """All ranks of a node at one moment."""

    at: float
    """time.monotonic()"""
    ranks: Mapping[int, Mapping[int, ProcessSample]]
    """By rank, then by process id."""
    checkpoints: tuple[int, int] = (0, 0)
    """How many files, and how many bytes."""


class Signs(NamedTuple):
    """What was seen between two samples."""

    work: tuple[str, ...] = ()
    """Sentences; empty: nothing moved."""
    busy: tuple[int, ...] = ()
    """Ranks whose processes compute, at the same place."""
    busy_main: tuple[int, ...] = ()
    """Those of them whose main threads do."""


def compare(before: NodeSample, after: NodeSample) -> Signs:
    """What the ranks of a node have done between two samples."""
    work = ["checkpoints are written"] if before.checkpoints != after.checkpoints else []
    if before.ranks.keys() != after.ranks.keys():
        work.append("ranks begin or end")
    seconds = max(0.1, after.at - before.at)
    busy, busy_main = [], []
    for rank in sorted(before.ranks.keys() & after.ranks.keys()):
        then, now = before.ranks[rank], after.ranks[rank]
        if then.keys() != now.keys():
            work.append(f"rank {rank} starts or ends processes")
        pairs = [(then[pid], now[pid]) for pid in then.keys() & now.keys()]
        if any(earlier.place != later.place for earlier, later in pairs):
            work.append(f"rank {rank} is at another place")
        if sum(later.moved_bytes - earlier.moved_bytes for earlier, later in pairs) >= MOVED_BYTES:
            work.append(f"rank {rank} reads or writes files")
        computing = [
            later for earlier, later in pairs if later.main_seconds - earlier.main_seconds >= MAIN_BUSY * seconds
        ]
        if any(process.place is None for process in computing):
            work.append(f"rank {rank} runs, and its stack cannot be taken")
        if computing:
            busy_main.append(rank)
        if computing or sum(later.seconds - earlier.seconds for earlier, later in pairs) >= TREE_BUSY * seconds:
            busy.append(rank)
    return Signs(tuple(work), tuple(busy), tuple(busy_main))
