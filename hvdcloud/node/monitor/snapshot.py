"""`look`: all that a screen shows of this node, in one answer."""

from __future__ import annotations

import os
import time
from typing import Any

from hvdcloud.node import paths
from hvdcloud.node.files import read_json
from hvdcloud.node.monitor.sample import GpuReader, Sample, Sensors, newest_file
from hvdcloud.node.records import state

_FRESH_SECONDS = 15.0
"""A sample that is older is of a run that has ended."""
_RATE_SECONDS = 0.2
_GPU_SECONDS = 1.5
_MOST_LOG = 1 << 16


def main(*, offset: int | None) -> dict[str, Any]:
    """The newest sample of this node, and on the head also the newest run with its log, from the byte that the caller
    needs next (None: it has nothing)."""
    # The one that is active, else the last that was prepared here.
    run = max((folder.name for folder in paths.runs_dir().glob("*")), default=None)
    answer: dict[str, Any] = {"now": time.time(), "run": run, "sample": _sample(run)}
    if run is not None and state.state_file(run).exists():
        answer |= {"state": state.read(run).to_json(), "log": _log(run, offset or 0)}
    return answer


def _sample(run: str | None) -> Sample:
    newest = read_json(newest_file(run)) if run is not None else None
    if newest is not None and abs(time.time() - newest.get("t", 0.0)) < _FRESH_SECONDS:
        return newest
    sensors = Sensors(GpuReader(seconds=_GPU_SECONDS))
    sensors.read()
    time.sleep(_RATE_SECONDS)
    sample = sensors.read()
    if newest is not None and "waiting" in newest:
        sample["waiting"] = newest["waiting"]
    return sample


def _log(run: str, offset: int) -> dict[str, Any]:
    """Whole lines from an offset on; of a long log only the end."""
    try:
        with state.log_file(run).open("rb") as file:
            start = max(offset, os.fstat(file.fileno()).st_size - _MOST_LOG)
            file.seek(start)
            data = file.read(_MOST_LOG)
    except OSError:
        return {"offset": offset, "text": ""}
    if start > offset:
        skip = data.find(b"\n") + 1
        start, data = start + skip, data[skip:]
    whole = data.rfind(b"\n") + 1
    return {"offset": start + whole, "text": data[:whole].decode(errors="backslashreplace")}
