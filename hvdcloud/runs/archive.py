"""What is known of runs whose nodes are gone: log and last state, which the head put beside the checkpoints."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from hvdcloud.checkpoints.manifest import list_runs, log_name, state_name
from hvdcloud.json_values import parse_object
from hvdcloud.runs.state import RunState
from hvdcloud.storage.base import PIECE, Bucket, ObjectMissingError, TooLargeError

KEEP_SECONDS = 5.0
MOST_LOG = 1 << 30
"""Bytes of a log's end that are read; a log in a bucket may have any size that its writer likes."""
_POLL_SECONDS = 0.2


def read(
    bucket: Bucket,
    *,
    cluster: str,
    cluster_id: str | None,
    run_id: str | None,
    start: int = 0,
) -> tuple[RunState, Iterator[bytes]] | None:
    """The last state and the log of a run that has ended, from its bucket; None: the bucket has no log of it.

    The log comes piece by piece; of one above MOST_LOG no more than its end is read, and it says so.

    Args:
        cluster_id: None: runs of every cluster that had this name count.
        run_id: None: the newest that has a log.
        start: the first byte of the log that is wanted.
    """
    for run in reversed(list_runs(bucket, cluster, suffix=cluster_id)):
        if run_id in (None, run) and (found := state(bucket, cluster, run)) is not None:
            name = log_name(cluster, run)
            # A listing does not read what it lists, as `stat` does in a folder.
            for info in bucket.list(name):
                if info.name == name:
                    first = max(start, info.size - MOST_LOG)
                    said = (
                        [b"[hvdcloud] the log has %d bytes; these are its last\n" % info.size] if first > start else []
                    )
                    # Not to an end that its writer moves on and on.
                    log = itertools.islice(bucket.pieces(name, start=first), 1 + MOST_LOG // PIECE)
                    return found, itertools.chain(said, log)
    return None


def wait(bucket: Bucket, *, cluster: str, run_id: str, fetch: Callable[[], object]) -> None:
    """Wait until a run that has just ended has its log and its last state in the bucket, which its head puts there.

    They are no checkpoints: after KEEP_SECONDS it goes on without them.

    Args:
        fetch: brings what nodes have that do not share the bucket.
    """
    deadline = time.monotonic() + KEEP_SECONDS
    while state(bucket, cluster, run_id) is None and time.monotonic() < deadline:
        fetch()
        time.sleep(_POLL_SECONDS)


def states(bucket: Bucket, *, cluster: str, cluster_id: str) -> list[RunState]:
    """The last state of every run of a cluster that has ended, newest last."""
    found = (state(bucket, cluster, run) for run in list_runs(bucket, cluster, suffix=cluster_id))
    return [each for each in found if each is not None]


def state(bucket: Bucket, cluster: str, run: str) -> RunState | None:
    """The last state of a run, or why it cannot be read; None: the bucket has none that says which run it is."""
    try:
        found = RunState.from_json(parse_object(bucket.read(state_name(cluster, run))))
    except ObjectMissingError:
        return None
    except TooLargeError as error:
        return RunState(run=run, cluster=cluster, state="done", reason=error.message)
    return found if found.run else None
