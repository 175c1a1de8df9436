"""Whether the ranks of a node do anything, by two samples of their threads. Pure.

What a rank does while it says nothing, and what is seen of it:

| the rank …                                  | seen                                                     | verdict |
| ------------------------------------------- | -------------------------------------------------------- | ------- |
| trains, evaluates                           | its main thread is at another place                      | works   |
| does so, and waits at one place mostly      | its main thread runs for a thousandth of the time        | works   |
| does so, and computes between many waits    | the same, also for a larger part of the time             | works   |
| compiles in the process (XLA, LLVM)         | a thread of a library computes, and memory is touched    | works   |
| compiles beside it (nvcc, ninja), tokenizes | processes come and go, or compute                        | works   |
| is in one long call of native code          | a thread computes, and memory is touched                 | works   |
| reads or writes files                       | bytes from and to disks                                  | works   |
| downloads                                   | its main thread is woken by a socket, again and again    | works   |
| exchanges large tensors                     | the network is busy                                      | works   |
| has given its GPU much to do, and waits     | the GPU's load changes, or kernels end, memory is read   | works   |
| sleeps, waits for a lock, a data loader     | no thread runs, or wakes at the same place only          | still   |
| waits in a collective of Gloo               | Horovod's threads and its call run; the rest is still    | still   |
| waits in a collective of Open MPI or NCCL   | the same, and these threads take a whole core            | still   |
| waits for a kernel that never ends          | the same, and the GPU is 100 % busy and draws little     | still   |
| spins in native code                        | a thread computes at the same place and touches nothing  | spins   |
| cannot be looked at, and runs               | the main thread runs, and no stack is known              | works   |

`spins` may be a computation that needs no new memory: it counts as still only after several times as long.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from hvdcloud.runs.stacks import Frame

BUSY = 0.05
"""Of one core; below, a thread waits and only looks around."""
RUNS, RUNS_BY_US = 0.001, 0.005
"""Of one core, for a main thread; a wait that looks around every second takes a third of that. And the seconds that a
look costs the thread."""
TOUCHED_PAGES = 16
"""Page faults of a thread that computes; one that spins has none."""
MOVED_BYTES = 1 << 20
WOKEN_PER_SECOND, WOKEN_BY_US = 2.0, 10
"""A thread that gets something waits again each time. One that is looked at is woken a few times by that."""
NETWORK_PER_RANK = 2_000_000.0
"""Bytes per second. Horovod's ranks ask each other a thousand times a second whether there is work: some 100 kB."""
GPU_LOAD, GPU_MEMORY = 10.0, 64 << 20
"""Differences of the utilization in per cent, of the memory in use in bytes."""
GPU_BETWEEN = (10.0, 99.0)
"""Per cent of the time in which a kernel runs. Below, it may be a screen; one that waits takes all of it."""
GPU_MEMORY_LOAD, GPU_POWER = 2.0, 0.6
"""Per cent of the time in which the memory is read or written, and part of the power limit. What an H200 says of both
percentages and of its watts, of 700:

- NCCL's kernel that waits for another rank, and one that never ends: 100, 0, 119; without a kernel: 0, 0, 76 to 119
- matrix products, large: 100, 23, 690; 1,024 wide, from a CUDA graph: 100, 0, 669; 64 wide: 86 to 100, 0, 122
- small ones for whose result the host waits: 38 to 47, 0, 124 to 137
- a convolutional network in training: 97, 43, 268 to 488; copies: 100, 100, 306 to 466

An H100, of 700 too: NCCL's kernel that waits, and one that never ends: 100, 0, 122; without a kernel: 0, 0, 71 to 126;
matrix products 1,024 wide, from a CUDA graph: 100, 0, 699.
"""
_COLLECTIVE = re.compile(
    r"/horovod/.*\.so|/(?:libmpi|libopen-(?:pal|rte)|libpmix|mca_|libnccl|libcuda\.|libgloo|libuc[mpst]\.|libpsm)"
)
"""Libraries whose threads wait for other ranks, or for the GPU, also while they take a whole core."""
_COLLECTIVE_CALL = re.compile(r"/horovod/(?:torch|tensorflow|keras|common|mxnet)/")
"""Horovod's own Python, which waits in its native code."""
# As the kernel names them in /proc/PID/wchan: for a socket, a pipe or a disk, and not for a lock or a clock.
_IO = re.compile(r"sk_wait|wait_woken|inet_|tcp_|poll_|_poll|epoll|do_select|unix_stream|pipe_read|io_schedule|folio_w")


class ThreadSample(NamedTuple):
    """A thread at one moment."""

    cpu: float
    """Seconds of a core so far."""
    wakes: int
    """How often it has waited so far."""
    faults: int
    """Pages that it has touched first so far."""
    waits: str
    """Where in the kernel it waits; empty: it runs."""
    owner: str = ""
    """The library that started it, if it has computed and runs no Python; empty: not known."""
    inside: tuple[str, ...] = ()
    """The libraries that its Python has called into, if it has computed; empty: not known."""

    @property
    def waits_for_ranks(self) -> bool:
        """Whether what it computes is a wait."""
        return any(map(_COLLECTIVE.search, (self.owner, *self.inside)))


class ProcessSample(NamedTuple):
    """A process of a rank at one moment."""

    threads: Mapping[int, ThreadSample]
    """By their ids; the main thread's is the process's."""
    moved_bytes: int
    """From and to disks so far."""
    main: tuple[Frame, ...] | None
    """Its main thread's calls in Python; None: not known, or it runs none."""


class GpuSample(NamedTuple):
    """A GPU at one moment; 0: it does not say."""

    load: float = 0.0
    """Per cent of the time in which a kernel runs."""
    memory: float = 0.0
    """Bytes in use."""
    memory_load: float = 0.0
    """Per cent of the time in which its memory is read or written."""
    power: float = 0.0
    """Part of its limit."""

    @property
    def computes(self) -> bool:
        """Whether what runs on it is more than a kernel that waits."""
        some, most = GPU_BETWEEN
        return some <= self.load < most or self.memory_load >= GPU_MEMORY_LOAD or self.power >= GPU_POWER


class NodeSample(NamedTuple):
    """All ranks of a node at one moment."""

    at: float
    """time.monotonic()"""
    ranks: Mapping[int, Mapping[int, ProcessSample]]
    """By rank, then by process id."""
    network: float = 0.0
    """Bytes per second to and from other nodes."""
    gpus: tuple[GpuSample, ...] = ()
    checkpoints: tuple[int, int] = (0, 0)
    """How many files, and how many bytes."""


class Signs(NamedTuple):
    """What was seen between two samples."""

    work: tuple[str, ...]
    """Sentences; empty: nothing moved."""
    spins: bool
    """A thread computes without any other sign."""


def compare(before: NodeSample, after: NodeSample) -> Signs:
    """What the ranks of a node have done between two samples."""
    work = [*_of_node(before, after)]
    spins = False
    if before.ranks.keys() != after.ranks.keys():
        work.append("ranks begin or end")
    for rank in sorted(before.ranks.keys() & after.ranks.keys()):
        signs = _of_rank(before.ranks[rank], after.ranks[rank], seconds=max(0.1, after.at - before.at))
        for sign in signs:
            if sign == _SPINS:
                spins = True
            else:
                work.append(f"rank {rank} {sign}")
    return Signs(tuple(work), spins)


_SPINS = "spins"


def _of_node(before: NodeSample, after: NodeSample) -> Iterator[str]:
    if before.checkpoints != after.checkpoints:
        yield "checkpoints are written"
    if after.network >= NETWORK_PER_RANK * max(1, len(after.ranks)):
        yield "the network is busy"
    for gpu, later in zip(before.gpus, after.gpus, strict=False):
        if abs(later.load - gpu.load) >= GPU_LOAD or abs(later.memory - gpu.memory) >= GPU_MEMORY:
            yield "a GPU's load changes"
        elif later.computes:
            yield "a GPU computes"


def _of_rank(
    before: Mapping[int, ProcessSample], after: Mapping[int, ProcessSample], *, seconds: float
) -> Iterator[str]:
    if before.keys() != after.keys():
        yield "starts or ends processes"
    for pid in before.keys() & after.keys():
        yield from _of_process(pid, before[pid], after[pid], seconds=seconds)


def _of_process(pid: int, before: ProcessSample, after: ProcessSample, *, seconds: float) -> Iterator[str]:
    if after.moved_bytes - before.moved_bytes >= MOVED_BYTES:
        yield "reads or writes files"
    main, earlier = after.threads.get(pid), before.threads.get(pid)
    if main is not None and earlier is not None:
        ran = main.wakes > earlier.wakes or main.cpu > earlier.cpu
        often = main.wakes - earlier.wakes - WOKEN_BY_US >= WOKEN_PER_SECOND * seconds
        if ran and (before.main is None or after.main is None):
            yield "runs, and its stack cannot be taken"
        elif before.main != after.main:
            yield "is at another place"
        elif after.main is not None and not (after.main and _COLLECTIVE_CALL.search(after.main[0].file)):
            share = (main.cpu - earlier.cpu - RUNS_BY_US) / seconds
            # With more than that it may spin, which is told below; but what spins does not wait in between.
            if share >= RUNS and (share < BUSY or often):
                yield "runs now and then"
        if often and _IO.search(main.waits) and _IO.search(earlier.waits) and not main.waits_for_ranks:
            yield "gets something over a socket or from a disk"
    for tid in before.threads.keys() & after.threads.keys():
        now, then = after.threads[tid], before.threads[tid]
        if (now.cpu - then.cpu) / seconds < BUSY or now.waits_for_ranks:
            continue
        yield "computes" if now.faults - then.faults >= TOUCHED_PAGES else _SPINS
