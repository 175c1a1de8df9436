"""A run's log, events and state beside its checkpoints, so that they outlive the nodes: `CLUSTER/RUN/.hvdcloud/log`."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from hvdcloud.checkpoints.manifest import events_name, log_name, stacks_name, state_name
from hvdcloud.node import paths
from hvdcloud.node.records import state
from hvdcloud.node.records.spec import Spec

_POLL_SECONDS = 0.05


def keep(run: str) -> None:
    """Put what there is of the log, and the state, into the run's bucket. Raises HvdcloudError, OSError: it failed."""
    try:
        spec = Spec.load(run)
        bucket = spec.open_bucket()
        bucket.upload(state.log_file(run), log_name(spec.cluster, run))
        if (events := state.events_file(run)).exists():
            bucket.write(events_name(spec.cluster, run), events.read_bytes())
        bucket.write(state_name(spec.cluster, run), json.dumps(state.read(run).to_json()).encode())
        # Last: of these only the stacks may not be replaced (terraform/identity.tf), so a second time ends here.
        if (stacks := state.stacks_file(run)).exists():
            bucket.write(stacks_name(spec.cluster, run), stacks.read_bytes())
    finally:
        with contextlib.suppress(OSError):
            _done_file(run).touch()


def wait_kept(run: str, *, seconds: float) -> None:
    """Wait until the log of a run that has ended was kept, or could not be: before its node goes."""
    deadline = time.monotonic() + seconds
    while not _done_file(run).exists() and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _done_file(run: str) -> Path:
    return paths.run_dir(run) / "log-kept"
