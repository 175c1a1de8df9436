"""Before money is spent: what it costs is said, and above `limits.ask_above` the user is asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvdcloud.errors import InterruptedByUserError, UsageError
from hvdcloud.units import dollars

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context
    from hvdcloud.providers.base import Plan


class Consent:
    """What the user has agreed to, of all that one command may make.

    Args:
        given: agreed to in advance, whatever it costs: `--yes`.
    """

    def __init__(self, *, given: bool = False) -> None:
        self._given = given
        self._agreed: float | None = None
        self._said: list[str] = []
        self._warned: list[str] = []

    def warn(self, context: Context, text: str) -> None:
        """A warning, unless this command has given it already."""
        if text not in self._warned:
            self._warned.append(text)
            context.console.warn(text)

    def seek(self, context: Context, plan: Plan, *, before: float | None = None) -> None:
        """Say what a plan costs, and ask if it may be more than `limits.ask_above` and than what was agreed to.

        Args:
            before: dollars per hour that the cluster costs already.

        Raises:
            UsageError: there is nobody to ask.
            InterruptedByUserError: the answer is no.
        """
        lines = [f"note: {notice}" for notice in plan.notices]
        worst = plan.worst_case_dollars
        if plan.dollars_per_hour:
            now = "" if before is None else f"{dollars(before)}/h now, then "
            lines.append(f"{now}{dollars(plan.dollars_per_hour)}/h, at worst {dollars(worst)}")
        for line in lines:
            if line not in self._said:
                context.console.say(line)
        self._said = lines
        limit = context.config.limits.ask_above
        if self._given or limit is None or worst <= limit or (self._agreed is not None and worst <= self._agreed):
            return
        cluster = f"cluster {plan.spec.name} may cost {dollars(worst)}, more than limits.ask_above of {dollars(limit)}"
        if not context.console.can_ask:
            raise UsageError(
                f"{cluster}, and there is no terminal to ask at",
                hint="--yes agrees to it; limits.max_cost keeps it below an amount; limits.ask_above sets when to ask",
            )
        if not context.console.confirm(f"{cluster}; go on?"):
            raise InterruptedByUserError(
                f"{plan.spec.name} was not confirmed; nothing was made",
                hint="set limits.max_cost or limits.max_run_duration to lower what it may cost",
            )
        self._agreed = worst
