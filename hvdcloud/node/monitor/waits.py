"""How long the ranks of this node wait in Horovod's collectives, as Horovod in each writes it down."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from typing import Any

from hvdcloud.json_values import parse_object
from hvdcloud.node import paths
from hvdcloud.runs.reports import RankWaits, number, whole
from hvdcloud.storage.checksum import open_plain

VARIABLE = "HVDCLOUD_WAITS"
"""Tells our Horovod into which file it writes (dockerfiles/patches/horovod-0.28.1-rank-waits.patch)."""
RECORD_BYTES = 256
RECENT_SECONDS = 60.0


def folder(run: str) -> Path:
    """With a file for every rank that has run here, named by its process."""
    return paths.run_dir(run) / "waits"


def environment(run: str) -> dict[str, str]:
    """What lets this process's rank count its waits, over the environment that it has; empty on a full disk."""
    path = folder(run) / f"{os.getpid()}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The room is taken now: it is there on a full disk, too.
        path.write_bytes(b" " * RECORD_BYTES)
    except OSError:
        # A full disk, which the run has other ways to say: it trains without being counted.
        return {}
    return {VARIABLE: str(path)}


class WaitsReader:
    """Reads what the ranks of one run on this node have counted. `node`: this node's name."""

    def __init__(self, run: str, node: str) -> None:
        self._folder = folder(run)
        self._node = node
        self._known: dict[str, deque[tuple[float, float]]] = {}
        """By file: pairs of `seconds` and `waited`, the oldest of them about a minute old."""

    def read(self) -> list[RankWaits]:
        """Of every rank that runs, and of those that have ended since; empty where none has waited since the last
        call."""
        found, changed = [], False
        for path in sorted(self._folder.glob("*.json")):
            counted = _read(path)
            rank, waited = whole(counted.get("rank")), number(counted.get("waited"))
            seconds = number(counted.get("seconds"))
            if rank is None or waited is None or not seconds:
                continue
            points = self._known.setdefault(path.name, deque([(0.0, 0.0)]))
            if seconds > points[-1][0]:
                points.append((seconds, waited))
                changed = True
            elif not Path("/proc", path.stem).exists():
                continue
            while len(points) > 2 and points[1][0] <= seconds - RECENT_SECONDS:
                points.popleft()
            if seconds <= points[0][0]:
                continue  # The file is the rank's, which may write anything.
            share = (waited - points[0][1]) / (seconds - points[0][0])
            recently = round(min(1.0, max(0.0, share)), 4)
            waits = RankWaits(
                rank=rank, node=self._node, waited=round(waited, 3), seconds=round(seconds, 3), recently=recently
            )
            found.append(waits)
        return found if changed else []


def _read(path: Path) -> dict[str, Any]:
    """One rank's counts; empty where it has written none, or something else: the file is the rank's."""
    with contextlib.suppress(OSError), open_plain(path) as file:
        return parse_object(file.read(RECORD_BYTES).strip()) or {}
    return {}
