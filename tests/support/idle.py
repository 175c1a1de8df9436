"""Nodes that have been idle for an hour: their last activity is made older."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from docker.errors import APIError

SECONDS = 3600.0
_FILE = "/run/hvdcloud/activity"


def age(engine: Any, *nodes: str) -> bool:
    """Make the last activity of the containers that run an hour older than now; False: one has noted none yet."""
    text = f'{{"seen": {time.monotonic() - SECONDS}}}'
    script = f"test -e {_FILE} && echo '{text}' > {_FILE}"
    codes = []
    for node in nodes:
        # One that has ended runs nothing.
        with contextlib.suppress(APIError):
            codes.append(engine.containers.get(node).exec_run(["sh", "-c", script])[0])
    return not any(codes)


def aged(engine: Any, node: str) -> bool:
    """Whether nothing has been noted since."""
    code, output = engine.containers.get(node).exec_run(["cat", _FILE])
    return code == 0 and time.monotonic() - float(output.partition(b":")[2].strip(b" }\n")) >= SECONDS
