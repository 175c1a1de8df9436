"""`run --down-when-done`, on the nodes' side: they end themselves, also when the laptop is off.

Only once every checkpoint is in the bucket; until then the nodes hold what exists nowhere else.
"""

from __future__ import annotations

import subprocess
import sys
import time

from hvdcloud.node import control, state
from hvdcloud.node.lease import NODE_PROGRAM, RECONNECT_SECONDS

GRACE_SECONDS = 5.0
"""For whoever follows the run: to read its end, and to delete the nodes properly before they end themselves."""
_POWEROFF_SECONDS = 10.0


def end_nodes(ended: state.State) -> None:
    """End every node's container, the head's last, if the run asked for it and nothing would be lost.

    Args:
        ended: the state of a run that is done.
    """
    if not ended.get("down_when_done") or not ended["checkpoints"]["complete"]:
        return
    time.sleep(GRACE_SECONDS)
    if state.active_run() is not None:
        return
    calls = [_poweroff(node) for node in ended["nodes"][1:]]
    deadline = time.monotonic() + _POWEROFF_SECONDS
    for call in calls:
        try:
            call.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"hvdcloud: {call.args!r} did not end in time\n")
            call.kill()
    control.poweroff()


def _poweroff(node: str) -> subprocess.Popen[bytes]:
    # A connection of its own: the run's shared ones have just been closed.
    options = ("-o", f"ConnectTimeout={RECONNECT_SECONDS}", "-o", "ControlPath=none")
    return subprocess.Popen(
        ["ssh", "-T", *options, node, f"{NODE_PROGRAM} poweroff"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
