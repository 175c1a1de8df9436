"""`up --wait`: while no zone has room, a plan is tried again and again. Between two tries nothing of it exists."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from hvdcloud.cluster.model import Plan
from hvdcloud.errors import CapacityError, InterruptedByUserError, NodeError
from hvdcloud.providers.base import NoRoomError
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.cluster.confirm_cost import Consent
    from hvdcloud.lifecycle.context import Context

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 30.0, 300.0
"""Between two tries; each pause is twice as long as the one before."""


class CapacityWait:
    """The wait of one `up`; `limit_seconds` after which the last try is made, 0: no wait.

    Args:
        command: what the user has typed, and types again after Ctrl-C.
    """

    def __init__(self, context: Context, consent: Consent, *, limit_seconds: float, command: str = "up") -> None:
        self._context = context
        self._consent = consent
        self._limit_seconds = limit_seconds
        self._command = command
        self._deadline: float | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def next_plan(self, plan: Plan, error: NoRoomError) -> Plan:
        """The plan of the next try, after a pause.

        What prices and quotas are is asked again. That Google does not answer, or that others hold the quota, ends no
        wait.

        Raises:
            NoRoomError: `error`; the time is over.
            InterruptedByUserError: Ctrl-C, or what it costs now was not agreed to.
            HvdcloudError: it can no longer be made.
        """
        said = f"no room in {counted(len(error.said), 'zone')}"
        if self._deadline is None:
            self._deadline = time.monotonic() + self._limit_seconds
            if self._limit_seconds:
                ends = datetime.now() + timedelta(seconds=self._limit_seconds)
                what = f"no zone has room; trying until {ends:%a %H:%M}, which costs nothing; Ctrl-C ends it"
                self._context.console.say(what)
        while (left := self._deadline - time.monotonic()) > 0:
            pause = min(self._pause, left)
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
            try:
                with self._context.console.steps() as steps:
                    steps.update(self._context.name, f"{said}; next try in {pause:.0f} s")
                    time.sleep(pause)
                    steps.update(self._context.name, "trying again")
                    spec = replace(plan.spec, id=secrets.token_hex(3), created=datetime.now(timezone.utc))
                    found = self._context.provider.plan(spec)
            except KeyboardInterrupt:
                what = f"{self._command} of {self._context.name}"
                raise InterruptedByUserError(
                    f"{what} was interrupted while waiting for room; nothing of it is left",
                    hint=f"hvdcloud {self._command} --wait 6h starts again",
                ) from None
            except (CapacityError, NodeError) as passing:
                said = passing.message
                continue
            ask_above = self._context.config.limits.ask_above
            self._consent.confirm_cost(found, console=self._context.console, ask_above=ask_above)
            return found
        raise error
