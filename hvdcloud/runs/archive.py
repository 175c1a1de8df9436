"""What is known of runs whose nodes are gone: log and last state, which the head put beside the checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from hvdcloud.runs.state import Event, RunState

if TYPE_CHECKING:
    from hvdcloud.storage.base import Bucket

KEEP_SECONDS = 5.0
_POLL_SECONDS, _MOST_POLL_SECONDS = 0.005, 0.1


def read(
    bucket: Bucket,
    *,
    cluster: str,
    cluster_id: str | None,
    run_id: str | None,
    start: int = 0,
    most: int | None = None,
) -> tuple[RunState, Iterator[bytes]] | None:
    """The last state and the log of a run that has ended, from its bucket; None: the bucket has no log of it.

    The log may be of any size, and comes piece by piece.

    Args:
        cluster_id: None: runs of every cluster that had this name count.
        run_id: None: the newest that has a log.
        start: the first byte of the log that is wanted.
        most: read only this many bytes at its end.
    """
    from hvdcloud.checkpoints.manifest import list_runs, log_name

    for run in reversed(list_runs(bucket, cluster, suffix=cluster_id)):
        if run_id in (None, run) and (found := state(bucket, cluster, run)) is not None:
            name = log_name(cluster, run)
            if (info := bucket.stat(name)) is not None:
                first = start if most is None else max(start, info.size - most)
                return found, bucket.pieces(name, start=first)
    return None


def wait(bucket: Bucket, *, cluster: str, run_id: str, fetch: Callable[[], object]) -> None:
    """Wait until a run that has just ended has its log and its last state in the bucket, which its head puts there.

    They are no checkpoints: after KEEP_SECONDS it goes on without them.

    Args:
        fetch: brings what nodes have that do not share the bucket.
    """
    deadline, pause = time.monotonic() + KEEP_SECONDS, _POLL_SECONDS
    while state(bucket, cluster, run_id) is None and time.monotonic() < deadline:
        fetch()
        time.sleep(pause)
        pause = min(2 * pause, _MOST_POLL_SECONDS)


def states(bucket: Bucket, *, cluster: str, cluster_id: str) -> list[RunState]:
    """The last state of every run of a cluster that has ended, newest last."""
    from hvdcloud.checkpoints.manifest import list_runs

    found = (state(bucket, cluster, run) for run in list_runs(bucket, cluster, suffix=cluster_id))
    return [each for each in found if each is not None]


def events(bucket: Bucket, cluster: str, run: str) -> list[Event]:
    """What happened to a run, as far as the bucket has it."""
    from hvdcloud.checkpoints.manifest import events_name
    from hvdcloud.storage.base import ObjectMissingError

    try:
        return Event.parse_lines(bucket.read(events_name(cluster, run)))
    except ObjectMissingError:
        return []


def state(bucket: Bucket, cluster: str, run: str) -> RunState | None:
    """The last state of a run; None: the bucket has none that says which run it is."""
    from hvdcloud.checkpoints.manifest import state_name
    from hvdcloud.storage.base import ObjectMissingError

    try:
        found = RunState.parse(bucket.read(state_name(cluster, run)))
    except ObjectMissingError:
        return None
    return found if found.run else None
