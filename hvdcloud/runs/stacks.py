"""The stacks of a run's ranks: read, compared, grouped and told. Pure.

A node sends them, and they name what a job has called its files and functions: every text is cut, and none is trusted.
Copied into the image, so it needs the standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hvdcloud.runs.reports import Report, Short, Tail
from hvdcloud.units import some

WORKSPACE = "/workspace/"
"""Where the project's code is on a node; without it, a path is that of the user's own file."""
MOST_FRAMES = 100
MOST_THREADS = 100
MOST_PROCESSES = 32
"""Of one rank; DataLoader's workers are processes."""
MOST_GROUPS = 8
SHOWN_FRAMES = 6
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python[\d.]+/|^<(?!string>)")
_FOLDERS = re.compile(rf"^.*/(?:site|dist)-packages/|^.*/lib/python[\d.]+/|^.*?{WORKSPACE}")
"""What a reader can do without in a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame(Report):
    """One call of a thread."""

    most = MOST_FRAMES
    name: Short
    file: Tail = ""
    """Of native code, the library."""
    line: int = 0
    """0: not known, as in native code."""
    native: bool = False

    @property
    def own(self) -> bool:
        """Whether it is the user's code, not a library's."""
        return not self.native and bool(self.file) and not _LIBRARY.search(self.file)

    @property
    def place(self) -> str:
        """`train.py:12`; of a library the file alone."""
        file = _FOLDERS.sub("", self.file)
        return f"{file}:{self.line}" if self.line else file.rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread(Report):
    """One thread that runs Python, and its calls, the deepest first."""

    most = MOST_THREADS
    name: Short = ""
    main: bool = False
    frames: Sequence[Frame] = ()

    @property
    def python(self) -> tuple[Frame, ...]:
        """Its calls without native code."""
        return tuple(frame for frame in self.frames if not frame.native)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStacks(Report):
    """A process of a rank and its threads."""

    most = MOST_PROCESSES
    pid: int = 0
    command: Short = ""
    threads: Sequence[Thread] = ()
    problem: Short = ""
    """Why there are no stacks of Python."""

    @property
    def main(self) -> Thread | None:
        """Its main thread, if that runs Python."""
        return next((thread for thread in self.threads if thread.main and thread.python), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStacks(Report):
    """All processes of a rank, the first of them what `run.command` started."""

    rank: int
    node: Short = ""
    processes: Sequence[ProcessStacks] = ()

    @property
    def trains(self) -> ProcessStacks:
        """The process that trains: the first that runs Python."""
        found = (process for process in self.processes if process.main is not None)
        return next(found, self.processes[0] if self.processes else ProcessStacks())


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Report):
    """Ranks that are at the same place."""

    most = MOST_GROUPS
    ranks: Sequence[int] = ()
    where: Short = ""
    """The function of a library that the user's own code has called: `DataLoader.__next__`; else the user's own."""
    place: Short = ""
    """`train.py:41`: the deepest line of the user's own code."""
    waits_for: Sequence[Short] = ()
    """Tensors that these ranks have submitted to Horovod, and others have not."""
    lines: Sequence[Short] = ()
    """Its main thread's calls, from the user's own code on to the deepest."""

    @property
    def who(self) -> str:
        """`rank 3`; `ranks 0, 1 and 2`."""
        return numbered_ranks(self.ranks)

    @property
    def text(self) -> str:
        """`ranks 0 and 1 are in synchronize (train.py:52)`."""
        verb = "is" if len(self.ranks) == 1 else "are"
        place = f" ({self.place})" if self.place else ""
        said = f"{self.who} {verb} in {self.where}{place}" if self.where else f"of {self.who} no stack is known"
        return said + (f", waiting for {some(self.waits_for, most=2)}" if self.waits_for else "")


def numbered_ranks(ranks: Sequence[int]) -> str:
    """`rank 3`; `ranks 0, 1 and 2`; of many in a row `ranks 0-31`."""
    rows: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if rows and rows[-1][-1] == rank - 1:
            rows[-1].append(rank)
        else:
            rows.append([rank])
    parts: list[str] = []
    for row in rows:
        parts += [f"{row[0]}-{row[-1]}"] if len(row) > 3 else map(str, row)
    if len(parts) > MOST_GROUPS:
        parts[MOST_GROUPS:] = ["others"]
    *first, last = parts or ["?"]
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(first)}{' and ' if first else ''}{last}"


def grouped(stacks: Sequence[RankStacks], *, missing: Mapping[int, Sequence[str]] | None = None) -> list[Group]:
    """Ranks by the place of their main thread, the smallest groups first: what differs is what one looks for.

    Args:
        missing: tensors that others have submitted to Horovod, by the rank that has not.
    """
    found: dict[object, list[RankStacks]] = {}
    for each in stacks:
        main = each.trains.main
        calls = tuple((frame.name, frame.place) for frame in main.python) if main else each.trains.problem
        found.setdefault(calls, []).append(each)
    tensors = missing or {}
    groups = []
    for members in found.values():
        ranks = sorted(member.rank for member in members)
        # A tensor that one of these ranks has not submitted is not what they wait for.
        waits = {name for rank, names in tensors.items() if rank not in ranks for name in names}
        waits -= {name for rank in ranks for name in tensors.get(rank, ())}
        groups.append(_group(ranks, members[0].trains, sorted(waits)))
    return sorted(groups, key=lambda group: (len(group.ranks), group.ranks))


def _group(ranks: Sequence[int], trains: ProcessStacks, waits_for: Sequence[str]) -> Group:
    if trains.main is None:
        return Group(ranks=ranks, waits_for=waits_for, lines=[trains.problem] if trains.problem else [])
    frames = trains.main.frames
    at = next((index for index, frame in enumerate(frames) if frame.own), None)
    own = trains.main.python[0] if at is None else frames[at]
    # Not what only wraps the function that was called.
    called = (frame for frame in frames[: at or 0][::-1] if not frame.native and "<locals>" not in frame.name)
    # From the user's own code inwards. An address without a name tells a reader nothing.
    shown = frames if at is None else frames[: at + 1]
    inner = [frame for frame in shown[::-1] if not (frame.native and frame.name.startswith("0x"))]
    # Of what is deeper, the last calls say most.
    inner = inner if len(inner) <= SHOWN_FRAMES else [*inner[:2], *inner[2 - SHOWN_FRAMES :]]
    lines = [f"{frame.place} in {frame.name}" for frame in inner]
    return Group(ranks=ranks, where=next(called, own).name, place=own.place, waits_for=waits_for, lines=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck(Report):
    """Why a run was ended although no rank had failed: nothing in it moved."""

    seconds: float = 0.0
    """For how long."""
    groups: Sequence[Group] = ()

    @property
    def text(self) -> str:
        """`stuck: nothing moved for 15 min; rank 3 is in DataLoader.__next__ (train.py:41), …`."""
        where = "; ".join(group.text for group in self.groups[:3])
        more = f" and {len(self.groups) - 3} more places" if len(self.groups) > 3 else ""
        minutes = f"{self.seconds / 60:.0f} min" if self.seconds >= 120 else f"{self.seconds:.0f} s"
        return f"stuck: nothing moved for {minutes}" + (f"; {where}{more}" if where else "")

    @property
    def lines(self) -> list[str]:
        """Each group's calls, under its ranks."""
        found = []
        for group in self.groups[:3]:
            found += [f"{group.who}:", *(f"  {line}" for line in group.lines)]
        return found
