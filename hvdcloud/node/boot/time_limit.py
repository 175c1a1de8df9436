"""`limits.max_run_duration` where no provider ends the nodes: they end themselves, whether or not the laptop is on.

A process beside the entrypoint waits for that, and counts also while the machine sleeps. Then the head ends the run,
whose checkpoints are uploaded; another node waits until that is done, or its head is late. What could not be uploaded
stays in the container, which nobody removes before it is elsewhere.
"""

from __future__ import annotations

import os
import time

from hvdcloud.errors import HvdcloudError
from hvdcloud.node import machine
from hvdcloud.node.mesh.nodes import node_names
from hvdcloud.node.records import active, state
from hvdcloud.node.run import control
from hvdcloud.node.uploads import archive
from hvdcloud.node.uploads.loop import incomplete_runs

VARIABLE = "HVDCLOUD_TIME_LIMIT"
"""The limit in seconds."""
LATE_SECONDS = 1800.0
"""How long the head of a cluster may take to end its run: the last uploads are waited for."""
_POLL_SECONDS = 1.0


def end_at_limit(at: float = 0.0) -> int:
    """`end-at-limit [AT]`: end this node; on the head the run first, and then the other nodes. Returns the process's
    exit code, always 0.

    Args:
        at: when, as `now` counts.
    """
    from hvdcloud.node.mesh import poweroff

    while now() < at:
        time.sleep(_POLL_SECONDS)
    poweroff.write_line(f"{_reason()}; switching off")
    # What fails here does not matter: the container keeps what it has.
    try:
        if (run := active.active_run()) is not None:
            state.record_event(run, _reason())
            control.stop(run)
            archive.wait_kept(run, seconds=control.LOG_SECONDS)
        late = time.monotonic() + LATE_SECONDS
        while active.live_agents() and time.monotonic() < late:
            time.sleep(_POLL_SECONDS)
        if incomplete_runs():
            control.flush()
    except (HvdcloudError, OSError) as error:
        poweroff.write_line(f"the run was not ended in order: {error}")
    if (names := node_names())[:1] == [machine.name()]:
        poweroff.end_others(names[1:])
    poweroff.switch_off()
    return 0


def _reason() -> str:
    limit = float(os.environ.get(VARIABLE) or 0.0)
    hours = f"{limit / 3600:.1f} h" if limit >= 3600 else f"{limit:.0f} s"
    return f"limits.max_run_duration of {hours} is over"


def now() -> float:
    """Seconds since the machine's boot; unlike those of time.monotonic(), also while it is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
