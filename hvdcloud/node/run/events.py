"""What happened to a run, and when, beside what its state says: a JSON object per line, on the head."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

from hvdcloud.node import paths

_MOST_BYTES = 1 << 17


def events_file(run: str) -> Path:
    """Of one run, on the head."""
    return paths.run_dir(run) / "events.jsonl"


def record(run: str, event: str, **fields: str) -> None:
    """Write one down. It is only for people: a full disk, or very many of them, keeps nothing else from happening."""
    line = json.dumps({"t": time.time(), "event": event, **fields}).encode() + b"\n"
    with contextlib.suppress(OSError):
        descriptor = os.open(events_file(run), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(descriptor).st_size < _MOST_BYTES:
                os.write(descriptor, line)
        finally:
            os.close(descriptor)


def read(run: str) -> list[dict[str, Any]]:
    """All of them, oldest first."""
    try:
        lines = events_file(run).read_bytes().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
