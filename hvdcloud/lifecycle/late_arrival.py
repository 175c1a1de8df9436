"""What an `up` that was killed had asked the provider for, and which appears a moment later."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context

LATE_SECONDS, PAUSE_SECONDS = 3.0, 0.5


def late_arrival(context: Context, killed: str | None) -> Cluster | None:
    """Wait for the cluster with the id `killed`, whose `up` was killed in the middle of its create.

    Returns it as soon as something of it exists; None: nothing appears, or there was no such `up`.
    """
    if killed is None:
        return None
    until = time.monotonic() + LATE_SECONDS
    with context.console.waiting(context.name, "waiting for what a killed `up` had asked for"):
        while True:
            found = context.provider.cluster(context.name)
            if found is not None and found.id == killed:
                return found
            if time.monotonic() >= until:
                break
            time.sleep(PAUSE_SECONDS)
    # Only spares the next command this wait.
    with contextlib.suppress(HvdcloudError):
        context.state.journal.record("down-done", cluster_id=killed)
    return None
