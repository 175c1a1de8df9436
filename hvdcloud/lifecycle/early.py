"""The checks of doctor that cost nothing, which `up`, `run` and `launch` make before they build or send anything."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import docker  # noqa: F401 - its modules import each other, which fails where two threads import different ones first

from hvdcloud.checks import Check, Finding, Status, failure, run_checks
from hvdcloud.doctor.machine import machine_checks, project_checks
from hvdcloud.errors import HvdcloudError, NodeError

if TYPE_CHECKING:
    from hvdcloud.cluster.model import ClusterSpec
    from hvdcloud.lifecycle.context import Context

GRACE_SECONDS = 0.5
"""How long a command waits for answers that its own questions did not outlast; then it continues without."""
_LIMIT_SECONDS = 60.0
_ROOM = "disk"
_OF_BUILD = ("registry", _ROOM)
"""Prevents a build, which may not be needed: only a warning."""
_OF_PROJECT = ("billing", "APIs", "permissions", "service account")
"""Asked of services that nothing else here needs: one that does not answer stops no command."""
_NO_PROOF = ("permissions", "service account", *_OF_BUILD)
"""A grant with a condition does not show there, nor does one of a minute ago: what seems to be missing is a warning."""
_OF_NEW_NODES = ("machine", "node rights", *_OF_PROJECT)
_WARN_OF = ("machine", "node rights", "data", *_OF_BUILD)
_SAID = ("data",)
"""What they found is worth a line where nothing is wrong."""


def check_project(context: Context, command: Sequence[str], *, only_warn: bool = False, first: bool = False) -> None:
    """Ask whether a run could begin: the files that it gets, the script that it starts, and its secrets.

    Args:
        command: what every rank runs; empty: `run.command`.
        only_warn: no run begins now; raise what is wrong for every one, or with a `run.command` that somebody wrote.
        first: it is asked again when the run begins, and its warnings are shown then.

    Raises UsageError: one of them is missing.
    """
    written = ["code", *(["files"] if "command" in context.config.run.model_fields_set else [])]
    for check in project_checks(context.config, command):
        found = _find(check)
        if found.status is Status.FAILED and found.error is not None:
            if not only_warn or check.name in written:
                raise found.error(found.message, hint=found.hint, details=found.details)
            context.console.warn(f"{found.message}; {found.hint}")
        elif found.status is Status.WARNING and not first:
            context.console.warn(f"{found.message}; {found.hint}")


class EarlyChecks:
    """Login, project, bucket, this machine's room and everyone's rights, asked on threads while the command works.

    Args:
        spec: what is up, or will be made; its image and its key do not count.
        nodes: they will be made, which needs room and rights.
        image: it may be built and pushed, which needs room and rights too. Whether there is room is asked by `finish`.
    """

    def __init__(self, context: Context, spec: ClusterSpec, *, nodes: bool = True, image: bool = False) -> None:
        checks = [
            each for each in context.platform.checks(spec) if each.early and (nodes or each.name not in _OF_NEW_NODES)
        ]
        self._room: Check | None = None
        if image:
            for each in machine_checks(context.config, context.platform, state_folder=context.state.dir):
                checks += [each] if each.early else []
                self._room = each if each.name == _ROOM else self._room
        names = [*(check.name for check in checks), _ROOM]
        asked = [
            replace(
                each,
                run=partial(self._ask, each),
                needs=tuple({*names} & {*each.needs}),
                explained_by=(),
                moot_without=(),
            )
            for each in checks
        ]
        self._console = context.console
        self._order = names.index
        self._answers: queue.SimpleQueue[tuple[str, Finding] | None] = queue.SimpleQueue()
        self._done = False

        def ask() -> None:
            run_checks(asked, seconds=_LIMIT_SECONDS)
            self._answers.put(None)

        threading.Thread(target=ask, daemon=True).start()

    def _ask(self, check: Check) -> Finding:
        """Make one check; its answer counts although others have none yet."""
        found = _find(check)
        self._answers.put((check.name, found))
        return found

    def finish(self, *, before_build: bool = False) -> None:
        """Raise what failed, as far as that is known by now or half a second later; may be called again.

        Args:
            before_build: an image will be built; ask whether the engine has room for it.

        Raises:
            HvdcloudError: of the kind of the first check that failed.
        """
        found: list[tuple[str, Finding]] = []
        if before_build and self._room is not None:
            found.append((_ROOM, _find(self._room)))
            self._room = None
        deadline = time.monotonic() + GRACE_SECONDS
        with contextlib.suppress(queue.Empty):
            while not self._done:
                answer = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
                if answer is None:
                    self._done = True
                else:
                    found.append(answer)
        found.sort(key=lambda answer: self._order(answer[0]))
        warnings = []
        for name, finding in found:
            silent = name in (*_OF_PROJECT, *_OF_BUILD) and finding.error is NodeError
            if finding.status is Status.FAILED and finding.error is not None and not silent:
                if name not in _NO_PROOF:
                    raise finding.error(finding.message, hint=finding.hint, details=finding.details)
                warnings.append(finding)
            elif finding.status is Status.WARNING and name in _WARN_OF:
                warnings.append(finding)
            elif finding.status is Status.OK and name in _SAID:
                self._console.say(f"{name}: {finding.message}")
        for finding in warnings:
            self._console.warn(f"{finding.message}; {finding.hint}")


def _find(check: Check) -> Finding:
    try:
        return check.run()
    except HvdcloudError as error:
        return failure(error)
