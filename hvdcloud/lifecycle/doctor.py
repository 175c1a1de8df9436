"""`hvdcloud doctor`: everything that a run needs, looked at before money is spent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import docker  # noqa: F401 - its modules import each other, which fails where two threads import different ones first

from hvdcloud.checks import DEADLINE_SECONDS, Check, Checked, Finding, Status, fine, run_checks
from hvdcloud.config.file import CONFIG_FILE
from hvdcloud.doctor.machine import machine_checks
from hvdcloud.errors import ExitCode
from hvdcloud.lifecycle.up import make_spec
from hvdcloud.units import counted

if TYPE_CHECKING:
    from hvdcloud.lifecycle.context import Context


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Every check in the order of the table."""

    checks: Sequence[Checked]
    seconds: float

    @property
    def exit_code(self) -> ExitCode:
        """That of the first check that failed."""
        return next((check.exit_code for check in self.checks if check.status is Status.FAILED), ExitCode.OK)


def doctor(context: Context, *, seconds: float = DEADLINE_SECONDS) -> Examination:
    """Run every check side by side, each for `seconds` at most. Nothing is changed, on this machine or elsewhere."""
    started = time.monotonic()
    checks = [
        Check(name="configuration", run=lambda: _configuration(context)),
        *context.platform.checks(make_spec(context)),
        *machine_checks(context.config, context.platform),
    ]
    with context.console.steps() as steps:
        steps.update("doctor", f"{len(checks)} checks")
        found = run_checks(checks, seconds=seconds)
    return Examination(checks=found, seconds=time.monotonic() - started)


def _configuration(context: Context) -> Finding:
    """What is asked for, in a line. That it is well-formed is known: it was read."""
    config, platform = context.config, context.platform
    image, nodes = config.image, counted(config.nodes, "node")
    what = f"{image.framework} on {image.device}"
    limit = f", at most {config.limits.max_run_duration / 3600:g} h" if platform.costs_money else ""
    file = CONFIG_FILE if (config.project_dir / CONFIG_FILE).is_file() else "no file"
    return fine(f"{file}: {config.name}, {nodes} {platform.place}{limit}, {what}")
