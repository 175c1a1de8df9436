"""Who is told of a run: the address that its head gets, and the end that only a client sees."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.runs.notice import address_problem, message, send
from hvdcloud.runs.state import RunState

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.config.model import Config
    from hvdcloud.lifecycle.context import Context

SEND_SECONDS = 15.0


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
    problems = [f"no answer in {SEND_SECONDS:.0f} s"]
    lost = RunState(run=run_id, cluster=cluster.name, state="done", result="lost", reason=why)
    try:
        if (target := address(context.config)) is None:
            return
        # In a thread: a name server or a slow server must not keep the command.
        thread = threading.Thread(target=lambda: problems.append(send(target, message(lost))), daemon=True)
        thread.start()
        thread.join(SEND_SECONDS)
    except UsageError as error:
        problems.append(error.message)
    if problems[-1]:
        context.console.warn(f"notify: {problems[-1]}; nobody was told that run {run_id} is lost")
