"""Whose a thread is that runs no Python: which library started it. x86-64 with glibc only.

py-spy shows the threads that Python knows. What the others compute is told by the library that they belong to: one that
Horovod, MPI or NCCL started waits for other ranks, also while it takes a whole core. A new thread's descriptor (glibc's
nptl/descr.h: struct pthread) has the function that it began with, and that function's argument. Of a C++ thread the
function is libstdc++'s, and the argument an object whose first word leads to the owner (its virtual table).
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

# <sys/ptrace.h> and <bits/waitflags.h>
_PTRACE_PEEKUSER, _PTRACE_DETACH = 3, 17
_PTRACE_SEIZE, _PTRACE_INTERRUPT = 0x4206, 0x4207
_WALL = 0x40000000
_FS_BASE = 21 * 8
"""Where `struct user` (<sys/user.h>) has the register that points to the thread's descriptor."""
_DESCRIPTOR_BYTES = 4096
_STOP_SECONDS = 1.0
_RUNTIMES = ("libc.so", "libc-", "libstdc++.so", "libpthread", "ld-linux")


class Mapping(NamedTuple):
    """A part of a process's memory."""

    start: int
    end: int
    path: str
    executable: bool


def read_mappings(text: str) -> list[Mapping]:
    """The mapped files in the text of /proc/PID/maps, by their addresses (proc(5))."""
    found = []
    for line in text.splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            start, _, end = fields[0].partition("-")
            found.append(Mapping(int(start, 16), int(end, 16), fields[5], "x" in fields[1]))
    return sorted(found)


def owner_of(pid: int, tid: int) -> str:
    """The path of the library that started a thread; "": not known. Stops the thread for a moment.

    To be called in a thread that ends soon: what that has stopped, and could not let go, continues then.
    """
    if platform.machine() != "x86_64":
        return ""
    try:
        mappings = read_mappings(Path(f"/proc/{pid}/maps").read_text())
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory, _stopped(tid):
            descriptor = _peek(tid, _FS_BASE)
            # A page at a time: the descriptor may be the last that is mapped.
            words = _words(memory.fileno(), descriptor, _DESCRIPTOR_BYTES - descriptor % 4096) + _words(
                memory.fileno(), descriptor + _DESCRIPTOR_BYTES - descriptor % 4096, descriptor % 4096
            )
            return _owner(words, mappings, memory.fileno())
    except (OSError, OverflowError, struct.error):
        # It has ended, or may not be traced.
        return ""


def _owner(words: Sequence[int], mappings: Sequence[Mapping], memory: int) -> str:
    for began, argument in pairwise(words):
        routine = _mapping_at(mappings, began)
        if routine is None or not routine.executable:
            continue
        # A library may bring its own copy of libstdc++: the object says more than the function.
        (table,) = _words(memory, argument, 8) or (0,)
        kind = _mapping_at(mappings, table)
        if kind is not None and not _is_runtime(kind.path):
            return kind.path
        if not _is_runtime(routine.path):
            return routine.path
    return ""


def _is_runtime(path: str) -> bool:
    return Path(path).name.startswith(_RUNTIMES)


def _mapping_at(mappings: Sequence[Mapping], address: int) -> Mapping | None:
    at = bisect_right(mappings, address, key=lambda mapping: mapping.start) - 1
    return mappings[at] if at >= 0 and address < mappings[at].end else None


def _words(memory: int, address: int, size: int) -> tuple[int, ...]:
    try:
        data = os.pread(memory, size, address)
    except OSError:
        return ()
    return struct.unpack(f"<{len(data) // 8}Q", data[: len(data) // 8 * 8])


def _ptrace(request: int, tid: int, address: int = 0, data: int = 0) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.restype = ctypes.c_long
    libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    ctypes.set_errno(0)
    answer: int = libc.ptrace(request, tid, address, data)
    if answer == -1 and (number := ctypes.get_errno()):
        raise OSError(number, os.strerror(number))
    return answer


def _peek(tid: int, offset: int) -> int:
    # glibc's wrapper wants no place for the answer, and returns it.
    return _ptrace(_PTRACE_PEEKUSER, tid, offset) & (1 << 64) - 1


@contextmanager
def _stopped(tid: int) -> Iterator[None]:
    """The thread does not run. Raises OSError: it may not be traced, has ended, or hangs in the kernel."""
    _ptrace(_PTRACE_SEIZE, tid)
    _ptrace(_PTRACE_INTERRUPT, tid)
    status = _wait(tid)
    # It may have stopped for a signal, which it gets when it continues (ptrace(2)).
    pending = 0 if status >> 16 else os.WSTOPSIG(status)
    try:
        yield
    finally:
        _ptrace(_PTRACE_DETACH, tid, data=pending)


def _wait(tid: int) -> int:
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(tid, _WALL | os.WNOHANG)
        if found:
            if os.WIFSTOPPED(status):
                return status
            break
        time.sleep(0.001)
    # One that hangs in the kernel stops later, and continues when the thread that has asked for it ends.
    raise TimeoutError
