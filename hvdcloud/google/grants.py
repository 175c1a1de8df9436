"""Grants of IAM that are too young to hold everywhere: how long after `hvdcloud setup` a refusal may pass."""

from __future__ import annotations

import contextlib
import math
import time
from pathlib import Path

from hvdcloud.cluster.files import state_root, write_private

SETTLING_SECONDS = 480.0
"""They take 2 minutes, and at times 7 or more: https://cloud.google.com/iam/docs/access-change-propagation"""
PAUSE_SECONDS = 15.0
"""Between two attempts at what was refused."""


def remember_grants(project: str) -> None:
    """This machine has changed grants in the project just now."""
    write_private(_file(project), "")


def settled_at(project: str | None) -> float:
    """When what this machine has granted in the project holds everywhere, in seconds of `time.time()`; 0: it does."""
    with contextlib.suppress(OSError):
        until = _file(project or "").stat().st_mtime + SETTLING_SECONDS
        if time.time() < until:
            return until
    return 0.0


def waiting(until: float) -> str:
    """Why, and for how long, what was refused is tried again."""
    left = max(1, math.ceil((until - time.time()) / 60))
    return f"not allowed yet: what setup grants takes minutes to hold; trying again for {left} min"


def _file(project: str) -> Path:
    return state_root() / "_setup" / project / "granted"
