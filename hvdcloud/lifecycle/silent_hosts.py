"""Hosts that do not answer while a lost cluster is to be deleted: one that boots again is waited for.

Nothing starts there by itself, but the container of its node keeps checkpoints, its name and its GPUs.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from hvdcloud.errors import HvdcloudError, TeardownError

if TYPE_CHECKING:
    from hvdcloud.cluster.model import Cluster
    from hvdcloud.lifecycle.context import Context

RETURN_SECONDS = 600.0
"""Servers with GPUs take minutes to boot."""
PAUSE_SECONDS = 5.0


def wait_for_hosts(context: Context, clusters: Collection[str], *, seconds: float) -> None:
    """Wait until every host answers that may have a node of a lost cluster.

    Args:
        clusters: ids of what was lost.
        seconds: how long at most, and no longer than `RETURN_SECONDS`.

    Raises:
        TeardownError: one does not.
    """
    if not (silent := _silent(context, clusters)):
        return
    deadline = time.monotonic() + min(RETURN_SECONDS, seconds)
    context.console.say(f"{silent} does not answer and may have a node of {context.name}; waiting for its return")
    with context.console.waiting(context.name, f"waiting for {silent}"):
        while silent := _silent(context, clusters):
            if time.monotonic() >= deadline:
                raise silent_error(context, silent)
            time.sleep(PAUSE_SECONDS)


def silent_hosts(context: Context, cluster: Cluster) -> str:
    """Those that may have a node of the cluster, in words; empty: none.

    Empty also where nodes cost money: those that are seen are not kept for others.
    """
    return "" if context.platform.costs_money or cluster.has_all_nodes else ", ".join(cluster.unseen)


def silent_error(context: Context, silent: str) -> TeardownError:
    """Why nothing is deleted."""
    run = f"hvdcloud run --name {context.name}"
    return TeardownError(
        f"{silent} does not answer and may have a node of {context.name}, with checkpoints; nothing was deleted",
        hint=f"{run} continues when it is back, or without it once it is taken out of ssh.hosts",
    )


def _silent(context: Context, clusters: Collection[str]) -> str:
    if context.platform.costs_money:
        return ""
    try:
        cluster = context.query()
    except HvdcloudError:
        # None answers, or none of those that do has a node. While a machine boots, it may also refuse logins.
        return "a host"
    return silent_hosts(context, cluster) if cluster is not None and cluster.id in clusters else ""
