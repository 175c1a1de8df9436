"""`up --wait`: while no zone has room, a plan is tried again and again. Between two tries nothing of it exists."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from hvdcloud.errors import CapacityError, InterruptedByUserError, NodeError
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Plan
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.providers.base import NoRoomError

PAUSE_SECONDS = 60.0
"""Between two tries."""


def next_plan(context: Context, plan: Plan, error: NoRoomError, *, until: float, command: str) -> Plan:
    """The plan of the next try, after a pause, by the prices and quotas of that moment.

    That Google does not answer, or that others hold the quota, ends no wait.

    Args:
        until: of time.monotonic(): when the last try is made.
        command: what the user has typed, and types again after Ctrl-C.

    Raises:
        NoRoomError: `error`; the time is over.
        InterruptedByUserError: Ctrl-C.
        HvdcloudError: it can no longer be made.
    """
    said = f"no room in {counted(error.zones, 'zone')}"
    while (left := until - time.monotonic()) > 0:
        pause = min(PAUSE_SECONDS, left)
        try:
            with context.console.steps() as steps:
                steps.update(context.name, f"{said}; next try in {pause:.0f} s")
                time.sleep(pause)
                steps.update(context.name, "trying again")
                spec = replace(plan.spec, id=secrets.token_hex(3), created=datetime.now(timezone.utc))
                return context.provider.plan(spec)
        except KeyboardInterrupt:
            raise InterruptedByUserError(
                f"{command} of {context.name} was interrupted while waiting for room; nothing of it is left",
                hint=f"hvdcloud {command} --wait 6h starts again",
            ) from None
        except (CapacityError, NodeError) as passing:
            said = passing.message
    raise error
