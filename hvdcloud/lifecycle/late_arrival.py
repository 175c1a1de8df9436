"""What an `up` that was killed had asked the provider for, and which appears a moment later."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context

CUT_OFF_SECONDS = 60.0
"""After this long the last request of an `up` that was killed has no further effect."""
LATE_SECONDS, PAUSE_SECONDS = 3.0, 0.2


class LateArrival:
    """Waits for the cluster of this machine's newest `up`, if that was killed in the middle of its create.

    The wait ends `LATE_SECONDS` after this object was made; without such an `up` there is none.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._killed = context.state.journal.cut_off_create(seconds=CUT_OFF_SECONDS)
        self._until = time.monotonic() + LATE_SECONDS

    def wait(self) -> Cluster | None:
        """That cluster, as soon as something of it exists; None if nothing appears."""
        if self._killed is None:
            return None
        context = self._context
        with context.console.waiting(context.name, "waiting for what a killed `up` had asked for"):
            # Each look is several requests; the last one is when the time is over.
            pause, over = PAUSE_SECONDS, time.monotonic() >= self._until
            while not over:
                found = context.provider.cluster(context.name)
                if found is not None and found.id == self._killed:
                    return found
                left = self._until - time.monotonic()
                over = left <= 0
                time.sleep(max(0.0, min(pause, left)))
                pause *= 2
        # Only spares the next command this wait.
        with contextlib.suppress(HvdcloudError):
            context.state.journal.record("down-done", cluster_id=self._killed)
        return None
