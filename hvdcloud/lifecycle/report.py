"""`hvdcloud report`: a run as one HTML page, from the bucket alone: nodes, provider and price list may be gone."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hvdcloud.errors import UsageError
from hvdcloud.lifecycle.pull import kept_run
from hvdcloud.report.page import outcome, page
from hvdcloud.report.phases import Phase, phases
from hvdcloud.report.record import read_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hvdcloud.lifecycle.context import Context
    from hvdcloud.runs.state import RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportResult:
    """The page that was written."""

    cluster: str
    run: str
    path: Path
    result: str
    """succeeded | failed | stopped | lost | not known to have ended"""
    nodes_sampled: int
    phases: Sequence[Phase] = ()
    """What its time went into, and what that has cost."""


def report(context: Context, *, run_id: str | None, target: Path | None) -> ReportResult:
    """Write a run's report.

    Args:
        run_id: None: the newest of which the bucket has anything.
        target: the file; None: `report-RUN.html` here.

    Raises:
        UsageError: no such run, or the file cannot be written.
        CheckpointError: the bucket cannot be reached, or a manifest in it is not valid.
    """
    bucket = context.bucket()
    run, newest = kept_run(bucket, context.name, run_id), kept_run(bucket, context.name, None)
    record = read_record(bucket, cluster=context.name, run=run)
    path = target or Path(f"report-{run}.html")
    if path.is_dir():
        path /= f"report-{run}.html"
    teardown = _teardown(context, record.state) if run == newest else 0.0
    parts = phases(record.state, until=record.last_seen, teardown=teardown)
    _write(path, page(record, parts))
    return ReportResult(
        cluster=context.name,
        run=run,
        path=path.absolute(),
        result=outcome(record),
        nodes_sampled=len(record.samples),
        phases=parts,
    )


def _teardown(context: Context, state: RunState) -> float:
    """How many seconds the deletion of the run's nodes took, if this machine has deleted them; else 0."""
    times = context.state.journal.times(state.run.rpartition("-")[2])
    if "down" not in times or "down-done" not in times:
        return 0.0
    # Nodes of such a run begin to end as soon as it has.
    began = state.ended if state.down_when_done and state.ended is not None else times["down"]
    return max(0.0, times["down-done"] - began)


def _write(path: Path, content: str) -> None:
    """Raises UsageError: it cannot be written, or is a link."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="--to names another file") from error
