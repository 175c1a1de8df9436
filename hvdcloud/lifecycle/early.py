"""The checks of doctor that cost nothing, which `up`, `run` and `launch` make before they build or send anything."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hvdcloud.checks import Checked, Status, run_checks
from hvdcloud.doctor.machine import project_checks
from hvdcloud.errors import CapacityError, CredentialsError, ExitCode, ImageError, NodeError, UsageError

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.lifecycle.context import Context

GRACE_SECONDS = 0.5
"""How long a command waits for answers that its own questions did not outlast; then it continues without."""
_LIMIT_SECONDS = 60.0
_OF_NEW_NODES = ("machine", "node rights")
_KINDS = {kind.code: kind for kind in (UsageError, CredentialsError, CapacityError, NodeError, ImageError)}


def check_project(context: Context, command: Sequence[str], *, only_warn: bool = False) -> None:
    """Ask whether a run could begin: the script that it starts, and its secrets. Takes milliseconds.

    Args:
        command: what every rank runs; empty: `run.command`.
        only_warn: no run begins now, and another may begin.

    Raises UsageError: one of them is missing.
    """
    for check in project_checks(context.config, command):
        found = check.run()
        if found.status is Status.FAILED and found.error is not None:
            if not only_warn:
                raise found.error(found.message, hint=found.hint)
            context.console.warn(f"{found.message}; {found.hint}")


class EarlyChecks:
    """Credentials, bucket, this machine's room and the nodes' rights, asked on threads while the command asks its own.

    Args:
        spec: what is up, or will be made; its image and its key do not count.
        nodes: they will be made, which needs room and rights.
    """

    def __init__(self, context: Context, spec: ClusterSpec, *, nodes: bool = True) -> None:
        checks = [
            each for each in context.platform.checks(spec) if each.early and (nodes or each.name not in _OF_NEW_NODES)
        ]
        names = {check.name for check in checks}
        asked = [replace(each, needs=tuple(names & {*each.needs}), explained_by=(), moot_without=()) for each in checks]
        self._console = context.console
        self._answers: queue.SimpleQueue[list[Checked]] = queue.SimpleQueue()
        self._done = False

        def ask() -> None:
            self._answers.put(run_checks(asked, seconds=_LIMIT_SECONDS))

        threading.Thread(target=ask, daemon=True).start()

    def finish(self) -> None:
        """Raise what failed, as far as that is known by now or half a second later; may be called again.

        Raises:
            HvdcloudError: of the kind of the first check that failed.
        """
        if self._done:
            return
        try:
            found = self._answers.get(timeout=GRACE_SECONDS)
        except queue.Empty:
            return
        self._done = True
        for check in found:
            if check.status is Status.FAILED and check.exit_code is not ExitCode.BUG:
                raise _KINDS[check.exit_code](check.message, hint=check.hint, details=check.details)
            if check.status is Status.WARNING and check.name in _OF_NEW_NODES:
                self._console.warn(f"{check.message}; {check.hint}")
