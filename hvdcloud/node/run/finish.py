"""After a run, on the head and without the laptop: its log goes to the bucket, and who wants to know is told; with
`--down-when-done` the nodes go.

They go only once every checkpoint is in the bucket; until then they hold what exists nowhere else.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence

from hvdcloud.node import notify
from hvdcloud.node.mesh import poweroff
from hvdcloud.node.records import active
from hvdcloud.node.uploads import archive
from hvdcloud.runs.reports import UploadReport
from hvdcloud.runs.state import RunState
from hvdcloud.units import some

NAMED_SKIPPED = 20
GRACE_SECONDS = 5.0
"""For clients that follow the run to read its end."""


def announcements(ended: RunState) -> list[str]:
    """What the log of a run that ends says of its nodes."""
    if not ended.down_when_done:
        return []
    if not _nodes_go(ended):
        return ["the nodes stay: they hold checkpoints that are not in the bucket"]
    return ["switching off the nodes: the run has ended and its checkpoints are in the bucket"]


def not_uploaded(reports: Mapping[str, UploadReport]) -> list[str]:
    """What the log of a run that ends says of files that stay on its nodes, by the nodes' names."""
    found = [f"node {node}: {what}" for node, report in reports.items() for what in report.skipped]
    more = len(found) - NAMED_SKIPPED
    return [*found[:NAMED_SKIPPED], *([f"and {more} more like these"] if more > 0 else [])]


def left_out_note(node: str, names: Sequence[str]) -> str:
    """What a run's log says of files that are too large to be kept."""
    kept = "of what ranks write beside the script, models are kept and checkpoints.workspace_gb of other files"
    return f"node {node}: not kept: {some(names)}; {kept}"


def after(ended: RunState) -> None:
    """Do what is left to do after a run that is done."""
    until = time.monotonic() + GRACE_SECONDS
    telling = threading.Thread(target=notify.tell, args=(ended.run,), name="notify")
    telling.start()
    told_by = time.monotonic() + notify.WAIT_SECONDS
    try:
        archive.keep(ended.run)
    except Exception as error:  # noqa: BLE001 - it is not a checkpoint, and nodes that cost money must go
        sys.stderr.write(f"hvdcloud: the log of run {ended.run} is not in the bucket: {error}\n")
    if not _nodes_go(ended):
        return
    time.sleep(max(0.0, until - time.monotonic()))
    telling.join(max(0.0, told_by - time.monotonic()))
    if active.active_run() is not None:
        return
    poweroff.write_line(f"switching off: run {ended.run} has ended and its checkpoints are in the bucket")
    poweroff.end_others(list(ended.nodes)[1:])
    poweroff.switch_off()


def _nodes_go(ended: RunState) -> bool:
    return ended.down_when_done and ended.checkpoints.complete
