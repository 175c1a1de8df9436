"""Before money is spent: what it costs is shown, and above `limits.ask_above` the user is asked."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hvdcloud.errors import InterruptedByUserError, UsageError
from hvdcloud.units import dollars

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Plan
    from hvdcloud.console import Console


class Consent:
    """What the user has agreed to, of all that one command may make.

    Args:
        ask_above: dollars; None: never ask.
        given: anything, in advance (`--yes`).
    """

    def __init__(self, console: Console, *, ask_above: float | None, given: bool) -> None:
        self._console, self._ask_above, self._given = console, ask_above, given
        self._agreed = 0.0
        self._shown: list[str] = []

    def confirm(self, plan: Plan, *, before: float | None = None) -> Plan:
        """Show what a plan costs, and ask if it may be more than `ask_above` and than what was agreed to; returns it.

        Args:
            before: dollars per hour that the cluster costs already.

        Raises:
            UsageError: there is no terminal to ask at.
            InterruptedByUserError: the answer is no.
        """
        lines = [f"note: {notice}" for notice in plan.notices]
        # What is not known may be more than any amount.
        worst = math.inf if plan.worst_case_dollars is None else plan.worst_case_dollars
        now = "" if before is None else f"{dollars(before)}/h now, then "
        if plan.dollars_per_hour is None:
            lines.append(f"{now}a price that is not known")
        elif plan.dollars_per_hour:
            lines.append(f"{now}{dollars(plan.dollars_per_hour)}/h, at worst {dollars(worst)}")
        for line in lines:
            if line not in self._shown:
                self._console.say(line)
        self._shown = lines
        if self._given or self._ask_above is None or worst <= max(self._ask_above, self._agreed):
            return plan
        limit = f"more than limits.ask_above of {dollars(self._ask_above)}"
        most = f"{dollars(worst)}, {limit}" if math.isfinite(worst) else f"any amount, its price is not known: {limit}"
        cluster = f"cluster {plan.spec.name} may cost {most}"
        if not self._console.can_ask:
            raise UsageError(
                f"{cluster}, and there is no terminal to ask at",
                hint="--yes agrees to it; limits.max_cost keeps it below an amount; limits.ask_above sets when to ask",
            )
        if not self._console.confirm(f"{cluster}; continue?"):
            raise InterruptedByUserError(
                f"{plan.spec.name} was not confirmed; nothing was made",
                hint="set limits.max_cost or limits.max_run_duration to lower what it may cost",
            )
        self._agreed = worst
        return plan
