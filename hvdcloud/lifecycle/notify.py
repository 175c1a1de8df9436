"""Who is told of a run: the addresses that its nodes get, a test of them, and the end that only a client sees."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hvdcloud.checks import Finding, failed, fine
from hvdcloud.errors import HvdcloudError, UsageError
from hvdcloud.json_values import parse_object
from hvdcloud.runs.notice import Notice, Settings, address_problem

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.config.model import Config
    from hvdcloud.lifecycle.context import Context

SEND_SECONDS, TEST_SECONDS = 15.0, 8.0
_LOOK_SECONDS = 1.0
_RETRIED = "retried"
"""In the object that says that an end was told: it is not told, since the run is tried again."""


def settings(config: Config, *, bucket: str, retries: bool = False) -> Settings | None:
    """What a run's nodes need to tell a person; None: nobody is told.

    Args:
        bucket: as the user sees it.
        retries: this client follows the run, and may try it again.

    Raises UsageError: a variable is not set, or its value is no address.
    """
    addresses = {}
    for kind, variable in config.notify.variables.items():
        value = os.environ.get(variable)
        if value is None:
            raise UsageError(
                f"notify.{kind} names {variable}, which is not set here", hint=f"export {variable}=https://…"
            )
        if problem := address_problem(value):
            raise UsageError(f"notify.{kind}: the value of {variable} {problem}", hint=f"export {variable}=https://…")
        addresses[kind] = value
    if not addresses:
        return None
    return Settings(
        addresses=addresses, on=config.notify.on, max_cost=config.limits.max_cost, bucket=bucket, retries=retries
    )


def header(config: Config, *, bucket: str, retries: bool = False) -> dict[str, Any]:
    """The part of what a node is sent when it is prepared; as `settings`, which may raise."""
    found = settings(config, bucket=bucket, retries=retries)
    return {} if found is None else {"notify": found.to_json()}


def tell_lost(context: Context, cluster: Cluster, run_id: str, why: str, *, last_lines: Sequence[str]) -> None:
    """Tell that a run was lost, unless it was told already. Whatever fails is a warning."""
    from hvdcloud.node.notify.post import send

    if not _claimed(context, cluster, run_id, ["end"]):
        return
    wanted = settings(context.config, bucket=cluster.bucket)
    assert wanted is not None
    notice = Notice(
        event="lost",
        cluster=cluster.name,
        run=run_id,
        result="lost",
        reason=why,
        dollars=cluster.dollars_so_far or None,
        last_lines=last_lines,
        bucket=wanted.bucket,
    )
    for kind, problem in send(notice, wanted.addresses, within=SEND_SECONDS).items():
        if problem:
            context.console.warn(f"notify.{kind}: {problem}; nobody was told that run {run_id} is lost")


def is_tried_again(context: Context, cluster: Cluster, run_id: str) -> bool:
    """Whether another client tries a lost run again; waits until that one, or a node, has said what becomes of it. The
    nodes wait as long. False at once where nobody would be told by this client, or `run.retry` is off."""
    from hvdcloud.checkpoints.manifest import told_name
    from hvdcloud.node.notify import tell
    from hvdcloud.storage.base import ObjectMissingError

    if context.config.run.retry is None or not _is_wanted(context.config):
        return False
    deadline = time.monotonic() + tell.RETRY_SECONDS
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(ObjectMissingError):
                told = context.bucket(cluster).read(told_name(cluster.name, run_id, tell.END))
                return (parse_object(told) or {}).get(_RETRIED) is True
            time.sleep(_LOOK_SECONDS)
    except HvdcloudError:
        # Without the bucket nobody can say it; `tell_lost` says so.
        return False
    return False


def keep_quiet(context: Context, cluster: Cluster, run_id: str) -> None:
    """Keep every node from telling that a run was lost: it is tried again. Whatever fails is a warning."""
    _claimed(context, cluster, run_id, ["end", "head-lost"], retried=True)


def _is_wanted(config: Config) -> bool:
    """Whether people are told of lost runs."""
    return "lost" in config.notify.on and bool(config.notify.variables)


def _claimed(context: Context, cluster: Cluster, run_id: str, ends: Sequence[str], *, retried: bool = False) -> bool:
    """Create the objects that say that an end was told. Returns whether none of them existed: the user is to be
    told."""
    from hvdcloud.checkpoints.manifest import told_name
    from hvdcloud.storage.base import PreconditionError

    if not _is_wanted(context.config):
        return False
    ours = True
    try:
        settings(context.config, bucket=cluster.bucket)
        for end in ends:
            mark = json.dumps({"by": "client", "at": time.time(), _RETRIED: retried}).encode()
            try:
                context.bucket(cluster).write(told_name(cluster.name, run_id, end), mark, if_generation=0)
            except PreconditionError:
                ours = False  # Another one was first.
    except HvdcloudError as error:
        context.console.warn(f"nobody is told that run {run_id} is lost: {error.message}")
        return False
    return ours


def test(config: Config) -> Finding:
    """Send a message to every address, from this machine."""
    from hvdcloud.node.notify.post import send

    wanted = settings(config, bucket="")
    if wanted is None:
        return failed("notify names no address", hint="notify: {webhook: NAME} in hvdcloud.yaml", error=UsageError)
    outcome = send(Notice(event="test", cluster=config.name, run=""), wanted.addresses, within=TEST_SECONDS)
    for kind, problem in outcome.items():
        if problem:
            variable = config.notify.variables[kind]
            hint = f"look at the address in {variable}"
            return failed(f"notify.{kind}: no message was taken: {problem}", hint=hint, error=UsageError)
    return fine(f"{' and '.join(outcome)} took a message")
