"""Who is told of a run: the address that its head gets, and the end that only a client sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.runs.notice import address_problem, message, send
from hvdcloud.runs.state import RunState

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.config.model import Config
    from hvdcloud.lifecycle.context import Context


def address(config: Config) -> str | None:
    """Where the end of a run is told; a secret. None: nowhere.

    Raises UsageError: the variable is not set, or its value is no address.
    """
    if (variable := config.notify) is None:
        return None
    value = os.environ.get(variable)
    problem = "is not set here" if value is None else address_problem(value)
    if problem:
        hint = f"export {variable}=https://…, or take notify out of hvdcloud.yaml"
        raise UsageError(f"notify: the variable {variable} {problem}", hint=hint)
    return value


def tell_lost(context: Context, cluster: Cluster, run_id: str, why: str) -> None:
    """Tell that a run was lost with its head, which cannot say so. Whatever fails is a warning."""
    lost = RunState(run=run_id, cluster=cluster.name, state="done", result="lost", reason=why)
    try:
        target = address(context.config)
        problem = send(target, message(lost), attempts=1) if target else ""
    except UsageError as error:
        problem = error.message
    if problem:
        context.console.warn(f"notify: {problem}; nobody was told that run {run_id} is lost")
